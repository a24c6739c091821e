"""A DP rank that dies takes its server with it, which is then started again.

SGLang 0.5.21 watches the processes that its main process started. Behind a DP controller the
schedulers are the controller's, and nobody watches them: a rank that was killed (by the kernel,
when memory is short) is a rank that never answers, and all requests that go there hang. So the
controller watches its schedulers, with SGLang's own watchdog, on every node; and passes on what it
sees as it does when it fails itself, to the main process, which ends the whole server. Not under
elastic EP, where the other ranks are meant to go on.
"""

import signal

from patches.base import Hook, Patch, Process
from patches.layers import Original
from patches.sglang_types import Controller

CONTROLLER = "sglang.srt.managers.data_parallel_controller.DataParallelController"
WATCHDOG = "sglang.srt.utils.watchdog.SubprocessWatchdog"


def _watched(
    original: Original[None], controller: Controller, *args: object, **kwargs: object
) -> None:
    import psutil
    from sglang.srt.runtime_context import get_exec
    from sglang.srt.utils.watchdog import SubprocessWatchdog

    original(controller, *args, **kwargs)
    if get_exec().moe.elastic_ep_backend is not None:
        return
    # The watchdog signals the process that it runs in; unhandled that would dump its core.
    main = psutil.Process().parent()
    signal.signal(signal.SIGQUIT, lambda *_: main.send_signal(signal.SIGQUIT))
    procs = [proc for proc in controller.scheduler_procs if proc is not None]
    SubprocessWatchdog(procs, [f"scheduler {n}" for n in range(len(procs))]).start()


PATCH = Patch(
    name="dp_watch",
    why="nobody notices that a scheduler behind the DP controller has died",
    processes=frozenset({Process.CONTROLLER}),
    hooks=(
        Hook(
            f"{CONTROLLER}.__init__",
            _watched,
            ("self", "server_args", "port_args", "run_scheduler_process_func"),
        ),
    ),
    requires=(WATCHDOG, f"{WATCHDOG}.start", "sglang.srt.runtime_context.get_exec"),
)
