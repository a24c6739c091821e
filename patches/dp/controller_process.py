"""The DP controller's process gets its patches too.

Up to 0.5.21 SGLang loads plugins in the main process and in every scheduler, not in the process
between them that a server with several DP ranks has (later releases find them loaded); and hooks do
not cross a spawn. So the function that
this process runs is replaced by `run`: by a plain assignment, since what `HookRegistry` wraps is
pickled under the original's name, and the child would run the original. `run` refuses when the
patches did not apply, and puts their names into what the controller reports when it is ready
(checked by `patches.streams.event_stream` before the worker serves).
"""

import inspect
from collections.abc import Iterable
from typing import Any

from patches.base import Patch, PatchError, Process, enter, refuse, resolve
from patches.environment import expected, installed

ENGINE = "sglang.srt.entrypoints.engine"
FUNCTION = "run_data_parallel_controller_process"
ORIGINAL = f"sglang.srt.managers.data_parallel_controller.{FUNCTION}"
STARTER = f"{ENGINE}.Engine._launch_scheduler_processes"
REPORT = "toolkit_controller_patches"
PARAMETERS = ("server_args", "port_args", "pipe_writer")


class ReportingPipe:
    """The controller's pipe to the main process; its report gets the names of our patches."""

    def __init__(self, pipe: Any, names: tuple[str, ...]) -> None:
        self._pipe = pipe
        self._names = names

    def send(self, report: Any) -> None:
        self._pipe.send(report | {REPORT: self._names})


def run(server_args: Any, port_args: Any, pipe_writer: Any, *others: Any, **named: Any) -> None:
    """Load the plugins, then be SGLang's DP controller."""
    enter(Process.CONTROLLER)
    from sglang.srt.plugins import load_plugins

    load_plugins()
    if not installed():
        refuse("the DP controller runs without the patches: SGLang loaded no plugins there")
    if missing := _lacking(installed()):
        refuse(f"the DP controller runs without the patches {', '.join(sorted(missing))}")
    pipe = ReportingPipe(pipe_writer, installed())
    resolve(ORIGINAL)(server_args, port_args, pipe, *others, **named)


def missing_patches(scheduler_info: dict[str, Any]) -> frozenset[str]:
    """Patches that the controller should have reported and did not."""
    return _lacking(scheduler_info.get(REPORT, ()))


def _lacking(names: Iterable[str]) -> frozenset[str]:
    return expected(Process.CONTROLLER) - set(names)


def _replace() -> None:
    found = tuple(inspect.signature(resolve(ORIGINAL)).parameters)
    if found[: len(PARAMETERS)] != PARAMETERS:
        raise PatchError(
            f"patch controller_process: {ORIGINAL} takes ({', '.join(found)}), "
            f"the patch was written for ({', '.join(PARAMETERS)})"
        )
    if FUNCTION not in resolve(STARTER).__func__.__code__.co_names:
        raise PatchError(f"patch controller_process: {STARTER} does not start {FUNCTION}")
    setattr(resolve(ENGINE), FUNCTION, run)


PATCH = Patch(
    name="controller_process",
    why="the DP rank of a request is chosen in a process that must have the patches too",
    processes=frozenset({Process.MAIN}),
    requires=(f"{ENGINE}.{FUNCTION}", STARTER, ORIGINAL),
    attach=_replace,
)
