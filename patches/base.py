"""What a patch is, and how the whole set is put in, checked and, when incomplete, refused.

SGLang's `HookRegistry` only logs a hook that failed to apply and then starts without it. A
deployment that silently lost its late binding or its expert remap serves wrong or slow answers,
so `install` verifies every symbol before and every hook after, and the worker ends with
`REFUSED_EXIT_CODE` when one is missing.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

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
    around: Callable[..., Any]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Patch:
    """A named set of hooks, with the reason for them.

    `requires` lists the symbols that the patch calls without hooking them. `attach` is for what
    is no wrapping (a new HTTP route, a missing attribute); it runs after the hooks. With a
    `variable` the patch is only for workers in whose environment that is set. `gain`: what it makes
    faster or cheaper, of one without which nothing is wrong: it can be left out
    (`patches.leaving_out`). `needs`: names of others that must be there with it.
    """

    name: str
    why: str
    processes: frozenset[Process]
    hooks: tuple[Hook, ...] = ()
    requires: tuple[str, ...] = ()
    attach: Callable[[], None] | None = None
    cpu_only: bool = False
    variable: str = ""
    gain: str = ""
    needs: tuple[str, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """Every dotted SGLang name that this patch depends on."""
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


def check_contract(patch: Patch) -> None:
    """Check that every symbol exists and every hooked function takes what the patch expects.

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


def install(patches: Sequence[Patch]) -> None:
    """Apply `patches` through SGLang's own hook registry and verify each of them.

    Raises:
        PatchError: the first patch that does not fit, by name.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooked = []
    for patch in patches:
        try:
            check_contract(patch)
        except PatchError as error:
            raise PatchError(f"patch {patch.name}: {error}") from error
        for hook in patch.hooks:
            hooked.append(resolve(hook.target))
            HookRegistry.register(hook.target, hook.around, HookType.AROUND)
    with one_walk(hooked):
        HookRegistry.apply_hooks()
    for patch in patches:
        for hook in patch.hooks:
            if hook.target not in HookRegistry._patched:
                raise PatchError(f"patch {patch.name}: SGLang did not apply its hook {hook.target}")
        if patch.attach is not None:
            patch.attach()


def refuse(reason: str) -> NoReturn:
    """End this process at once, saying why on the last line of standard error."""
    sys.stdout.flush()
    print(f"toolkit: refused: {reason}", file=sys.stderr, flush=True)
    os._exit(REFUSED_EXIT_CODE)
