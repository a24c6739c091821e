"""Does the SGLang that is importable here have what the patches hook and call?

`report()` prints a line for each symbol of each patch, from a process in which SGLang can be
imported; `read` takes the lines apart in another one.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from patches.base import PatchError, Process, check_contract, enter, fitting, install
from patches.order import inner_first
from patches.registry import ALL

VARIANT = "(its variants)"
"""Stands for the hooks that differ from release to release: that one of them fits."""
ALL_TOGETHER = "(all together)"
_MARK = "contract: "


@dataclass(frozen=True)
class Verdict:
    """Of one symbol of one patch; `problem` is empty where it is as the patch expects. `variant`:
    which one fits, of a patch that has several."""

    patch: str
    symbol: str
    problem: str = ""
    variant: str = ""


def verdicts() -> Iterable[Verdict]:
    """Of every symbol of every patch, with SGLang imported into this process."""
    for patch in ALL:
        for symbol in patch.symbols:
            hooks = tuple(hook for hook in patch.hooks if hook.target == symbol)
            only = replace(patch, hooks=hooks, requires=() if hooks else (symbol,), variants=())
            try:
                check_contract(only)
                yield Verdict(patch.name, symbol)
            except PatchError as error:
                yield Verdict(patch.name, symbol, str(error))
        try:
            _, variant = fitting(replace(patch, hooks=(), requires=()))
            yield Verdict(patch.name, VARIANT, variant=variant)
        except PatchError as error:
            yield Verdict(patch.name, VARIANT, str(error))


def installed() -> Iterable[Verdict]:
    """Of each kind of process of a CPU worker: can all of its patches be put in together? Each is
    tried in a fork."""
    for process in Process:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, _install(process).encode()[:60_000])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as told:
            problem = told.read()
        os.waitpid(child, 0)
        yield Verdict(ALL_TOGETHER, process, problem)


def _install(process: Process) -> str:
    enter(process)
    # Patches that a launcher asks for by these say nothing of SGLang without them.
    os.environ |= {"TOOLKIT_WORKER_KEY": "key", "SGLANG_HOST_IP": "127.0.0.1"}
    try:
        install([patch for patch in inner_first(ALL) if process in patch.processes])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def report() -> None:
    """Print them."""
    for verdict in (*verdicts(), *installed()):
        print(_MARK + json.dumps(asdict(verdict)))


def read(printed: str) -> list[Verdict]:
    """What `report` has printed, among whatever SGLang prints when it is imported."""
    lines = (line for line in printed.splitlines() if line.startswith(_MARK))
    return [Verdict(**json.loads(line.removeprefix(_MARK))) for line in lines]


if __name__ == "__main__":
    import gc

    from patches.stubs import put_on_path

    gc.disable()  # it imports SGLang, answers and is gone
    put_on_path()
    report()
