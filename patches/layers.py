"""Several hooks on one function as one: SGLang is given one hook a symbol, composed here.

SGLang's own registry takes several, wraps them in the order in which they were registered, and logs
a warning of each such symbol in each process.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

Around = Callable[..., Any]
"""A hook: it is called as `around(original, *args, **kwargs)` in place of `original`."""


def composed(arounds: Sequence[Around]) -> Around:
    """One hook that does what these do, each wrapped by the next one: the last is outermost."""
    if len(arounds) == 1:
        return arounds[0]

    @functools.cache  # of one function: SGLang gives a hook the function that it wraps each time
    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        return functools.reduce(_wrap, arounds, original)

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return wrapped(original)(*args, **kwargs)

    return around


def _wrap(inner: Callable[..., Any], around: Around) -> Callable[..., Any]:
    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return around(inner, *args, **kwargs)

    return outer
