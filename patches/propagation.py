"""SGLang's hooks reach those who imported a function by name; here in one walk over all modules.

`HookRegistry` walks over every module for every hook, some hundred thousand names each time: with
our hooks most of the time in which a worker's process starts once its imports are there. Which
modules have which of our functions is looked up once instead. What is changed stays the same.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType

WALK = "sglang.srt.plugins.hook_registry._propagate_patch"
"""`(original, wrapped, source) -> int`: puts `wrapped` in place of `original` in all modules but
`source`, and says in how many."""

Walk = Callable[[object, object, object], int]


class Places:
    """Where functions are in modules, by what they are called there."""

    def __init__(self, functions: Iterable[object]) -> None:
        self._held = {id(function): function for function in functions}
        self._at: dict[int, list[tuple[ModuleType, str]]] = {each: [] for each in self._held}
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType):
                for name, value in list(vars(module).items()):
                    if id(value) in self._at:
                        self._at[id(value)].append((module, name))

    def __contains__(self, function: object) -> bool:
        return id(function) in self._at

    def replace(self, original: object, wrapped: object, source: object) -> int:
        """As `WALK`, of a function that is known here. `wrapped` is known from then on."""
        at = [(m, name) for m, name in self._at[id(original)] if vars(m).get(name) is original]
        elsewhere = [(module, name) for module, name in at if module is not source]
        for module, name in elsewhere:
            setattr(module, name, wrapped)
        self._held[id(wrapped)] = wrapped
        self._at[id(wrapped)] = self._at[id(original)]
        return len(elsewhere)


@contextmanager
def one_walk(functions: Iterable[object]) -> Iterator[None]:
    """While the block runs, hooks on these functions find their places so. Import nothing there.

    A release that has no such walk keeps its own way.
    """
    from sglang.srt.plugins import hook_registry

    walk: Walk | None = getattr(hook_registry, "_propagate_patch", None)
    if walk is None:
        yield
        return
    # Of a class method SGLang wraps the function in it.
    places = Places(getattr(function, "__func__", function) for function in functions)

    def replace(original: object, wrapped: object, source: object) -> int:
        where = places.replace if original in places else walk
        return where(original, wrapped, source)

    hook_registry._propagate_patch = replace
    try:
        yield
    finally:
        hook_registry._propagate_patch = walk
