"""What a patch is, and how the whole set is put in, checked and, when incomplete, refused.

SGLang's `HookRegistry` only logs a hook that failed to apply and then starts without it. A
deployment that silently lost its late binding or its expert remap serves wrong or slow answers,
so `install` verifies every symbol before and every hook after, and the worker ends with
`REFUSED_EXIT_CODE` when one is missing.
"""

import inspect
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NoReturn

from patches.layers import Around, composed
from patches.propagation import one_walk

REFUSED_EXIT_CODE = 78
"""Exit status of a worker that would have run half-patched (EX_CONFIG of sysexits.h)."""


class Process(StrEnum):
    """Which of a worker's processes a patch belongs to."""

    MAIN = "main"
    """HTTP server and tokenizer manager: the process that the launcher started."""
    SCHEDULER = "scheduler"
    """One per rank, spawned; runs the model."""
    CONTROLLER = "controller"
    """Between the two where there are several DP ranks; see `patches.dp.controller_process`."""


class PatchError(RuntimeError):
    """A patch cannot be applied to the SGLang that is installed here."""


@dataclass(frozen=True)
class Hook:
    """One wrapped SGLang function: `around(original, *args, **kwargs)`.

    `parameters` are the names that the patch relies on, in order; the self-check and the
    contract tests compare them with the installed function.
    """

    target: str
    around: Around
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Variant:
    """What a patch hooks and calls in some releases of SGLang only; `name` says in which.

    Which one fits is found out by what the installed SGLang looks like, not by its version: a
    build from its main branch, or a distributor's, has the version of one release and the
    functions of the next.
    """

    name: str
    hooks: tuple[Hook, ...] = ()
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patch:
    """A named set of hooks, with the reason for them.

    `requires` lists the symbols that the patch calls without hooking them. `variants`: of these the
    first that fits the installed SGLang is put in, too, and one must. `attach` is for what
    is no wrapping of a function (a new HTTP route, a missing attribute); it runs after the hooks.
    `attach_to`: what it puts a layer around all the same. With a `variable` the patch is only for
    workers in whose environment that is set. `gain`: what it makes faster or cheaper, of one
    without which nothing is wrong: it can be left out (`patches.leaving_out`). `needs`: names of
    others that must be there with it.

    Two patches that wrap one symbol are in an order that one of them declares (`patches.order`).
    `after`: names of patches that this one wraps there. It is put in after them, so that it begins
    before them and ends behind them. `independent_of`: names of patches with which either order
    will do. Both say the reason for each name.
    """

    name: str
    why: str
    processes: frozenset[Process]
    hooks: tuple[Hook, ...] = ()
    requires: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    attach: Callable[[], None] | None = None
    cpu_only: bool = False
    variable: str = ""
    attach_to: tuple[str, ...] = ()
    gain: str = ""
    needs: tuple[str, ...] = ()
    after: Mapping[str, str] = field(default_factory=dict, hash=False)
    independent_of: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def wraps(self) -> frozenset[str]:
        """Every dotted SGLang name that this patch wraps, in some release at least."""
        hooks = [*self.hooks, *(hook for variant in self.variants for hook in variant.hooks)]
        return frozenset([*(hook.target for hook in hooks), *self.attach_to])

    @property
    def symbols(self) -> tuple[str, ...]:
        """Every dotted SGLang name that this patch depends on in all releases."""
        return tuple(hook.target for hook in self.hooks) + self.requires


EITHER = frozenset({Process.MAIN, Process.SCHEDULER})
EVERY = frozenset(Process)

_entered: Process | None = None


def current_process() -> Process:
    """Schedulers are spawned through multiprocessing; the HTTP process is started by a person."""
    if _entered is not None:
        return _entered
    return Process.MAIN if multiprocessing.parent_process() is None else Process.SCHEDULER


def enter(process: Process) -> None:
    """Say which process this is, where it cannot be told from outside; before `register`."""
    global _entered
    _entered = process


def resolve(symbol: str) -> Any:
    """The object at a dotted name.

    Raises:
        PatchError: nothing is there in the installed SGLang.
    """
    import pkgutil

    try:
        return pkgutil.resolve_name(symbol)
    except (ImportError, AttributeError, ValueError) as error:
        raise PatchError(f"{symbol} does not exist in the installed SGLang ({error})") from error


def check_contract(patch: Patch | Variant) -> None:
    """Check that every symbol exists and every hooked function takes what the patch expects;
    `fitting` looks at a patch's variants.

    Raises:
        PatchError: names the symbol and what differs.
    """
    for symbol in patch.requires:
        resolve(symbol)
    for hook in patch.hooks:
        found = tuple(inspect.signature(resolve(hook.target)).parameters)
        if found[: len(hook.parameters)] != hook.parameters:
            raise PatchError(
                f"{hook.target} takes ({', '.join(found)}), "
                f"the patch was written for ({', '.join(hook.parameters)})"
            )


def fitting(patch: Patch) -> tuple[Patch, str]:
    """The patch with the hooks of the variant that fits the installed SGLang, and this one's name;
    the name is empty where the patch is the same in all releases.

    Raises:
        PatchError: a symbol that all releases have is gone, or no variant fits; each one's reason.
    """
    check_contract(patch)
    problems = []
    for variant in patch.variants:
        try:
            check_contract(variant)
        except PatchError as error:
            problems.append(f"{variant.name}: {error}")
            continue
        hooks, requires = patch.hooks + variant.hooks, patch.requires + variant.requires
        return replace(patch, hooks=hooks, requires=requires, variants=()), variant.name
    if problems:
        raise PatchError(f"none of its variants fits ({'; '.join(problems)})")
    return patch, ""


def fitted(patches: Sequence[Patch]) -> tuple[list[Patch], dict[str, str]]:
    """Each as `fitting` has it, and by its name which variant that is, where it has several.

    Raises:
        PatchError: the first patch that does not fit, by name.
    """
    found, chosen = [], {}
    for patch in patches:
        try:
            fits, variant = fitting(patch)
        except PatchError as error:
            raise PatchError(f"patch {patch.name}: {error}") from error
        found.append(fits)
        if variant:
            chosen[patch.name] = variant
    return found, chosen


def install(patches: Sequence[Patch]) -> dict[str, str]:
    """Apply `patches`, inner ones first, through SGLang's own hook registry, one hook a symbol, and
    verify each of them. Returns which variant was taken of those that have several, by the patch's
    name.

    Raises:
        PatchError: the first patch that does not fit, by name, or is not where it is to be.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _check_given_order(patches)
    patches, chosen = fitted(patches)
    arounds = hooks_of(patches)
    hooked = {target: resolve(target) for target in arounds}
    _check_one_name(hooked)
    for target, of_target in arounds.items():
        HookRegistry.register(target, composed(of_target), HookType.AROUND)
    with one_walk(hooked.values()):
        HookRegistry.apply_hooks()
    for patch in patches:
        for hook in patch.hooks:
            if hook.target not in HookRegistry._patched:
                raise PatchError(f"patch {patch.name}: SGLang did not apply its hook {hook.target}")
        if patch.attach is not None:
            patch.attach()
    return chosen


def hooks_of(patches: Sequence[Patch]) -> dict[str, list[Around]]:
    """By symbol, what wraps it: innermost first, as `patches` are given.

    Raises:
        PatchError: a patch hooks a symbol twice, so that nobody has said in which order.
    """
    arounds: dict[str, list[Around]] = {}
    for patch in patches:
        targets = [hook.target for hook in patch.hooks]
        for hook in patch.hooks:
            if targets.count(hook.target) > 1:
                raise PatchError(f"patch {patch.name} hooks {hook.target} twice: make it one hook")
            arounds.setdefault(hook.target, []).append(hook.around)
    return arounds


def _check_given_order(patches: Sequence[Patch]) -> None:
    """Each behind those that it wraps; not all need be there."""
    coming = {patch.name for patch in patches}
    for patch in patches:
        coming.discard(patch.name)
        for name in sorted(coming & set(patch.after)):
            raise PatchError(
                f"patch {patch.name} is to wrap {name} and would be put in before it: put them "
                "into the order of patches.order"
            )


def _check_one_name(hooked: Mapping[str, object]) -> None:
    """A function that is hooked under two names would have hooks that no order speaks of."""
    names: dict[int, str] = {}
    for target, function in hooked.items():
        other = names.setdefault(id(getattr(function, "__func__", function)), target)
        if other != target:
            raise PatchError(f"{other} and {target} are one function: hook it under one name")


def refuse(reason: str) -> NoReturn:
    """End this process at once, saying why on the last line of standard error."""
    sys.stdout.flush()
    print(f"toolkit: refused: {reason}", file=sys.stderr, flush=True)
    os._exit(REFUSED_EXIT_CODE)
