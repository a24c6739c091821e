"""Several hooks on one function as one: SGLang is given one hook a symbol, composed here.

SGLang's own registry takes several, wraps them in the order in which they were registered, and logs
a warning of each such symbol in each process.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

Returned = TypeVar("Returned")
Original = Callable[..., Returned]
"""What a hook wraps, and calls as SGLang would have."""
Around = Callable[..., object]
"""A hook: it is called as `around(original, *args, **kwargs)` in place of `original`."""


def composed(arounds: Sequence[Around]) -> Around:
    """One hook that does what these do, each wrapped by the next one: the last is outermost."""
    if len(arounds) == 1:
        return arounds[0]

    @functools.cache  # of one function: SGLang gives a hook the function that it wraps each time
    def wrapped(original: Original[object]) -> Original[object]:
        return functools.reduce(_wrap, arounds, original)

    def around(original: Original[object], *args: object, **kwargs: object) -> object:
        return wrapped(original)(*args, **kwargs)

    return around


def _wrap(inner: Original[object], around: Around) -> Original[object]:
    @functools.wraps(inner)
    def outer(*args: object, **kwargs: object) -> object:
        return around(inner, *args, **kwargs)

    return outer
