"""On CPU all processes of a worker are forked from one that has imported what they need.

A worker is three processes or more (server, schedulers, detokenizer, DP controller), and SGLang
spawns each of them: each imports torch and SGLang again, 10 s of CPU, of which nearly all of a
start consists where no weights have to be read. So the server imports for all of them, before it
loads any plugin, and forks a template: Python's own fork server (`multiprocessing.forkserver`),
from which its processes then come. They share the pages of what was imported, too.

On a GPU processes are spawned, as SGLang wants it: CUDA does not survive a fork.

What a spawned process would have and a forked one gets from here: the environment of the moment at
which it was started, the patches of its own kind only (none are loaded before the fork), the end of
its life with that of the server (its parent is the template, whose parent is the server), and a way
to tell the server that it failed (SGLang sends SIGQUIT to the parent: the template passes it on).
"""

import gc
import importlib
import multiprocessing
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker, spawn, util
from pathlib import Path
from typing import Any

from patches.base import Hook, Patch, Process
from patches.layers import Original
from toolkit.preloaded import shown
from toolkit.preloaded.server import die_with_parent, set_environment

STARTER = "sglang.srt.entrypoints.engine._set_envs_and_config"

MODULES = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.data_parallel_controller",
    "sglang.srt.models.registry",
    "sglang.srt.disaggregation.mooncake.conn",
    "sglang.srt.kv_canary.api",
    "patches.registry",
)
"""What is imported before the fork; none of it starts a thread. (A module that a process needs and
that is not here costs that process time, nothing else.)"""

LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_STACK)
"""What SGLang raises for itself before it starts its processes."""

shared = False
"""Whether this process was forked from one that had imported `MODULES` (`patches.preloaded`)."""
_started = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing looks for garbage meanwhile: of importing SGLang that took a sixth of the time, and
    found 14 MB. Whoever forks collects it once, afterwards."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def preload() -> None:
    """Import `MODULES`."""
    with uncollected():
        for name in MODULES:
            importlib.import_module(name)


def start() -> None:
    """Import `MODULES` and fork the template. Once, from the main thread of a process that has no
    other, before any plugin is loaded."""
    global _started
    preload()
    resource_tracker.ensure_running()
    listener = socket.socket(socket.AF_UNIX)
    # In a folder that only this user opens: what comes here is unpickled.
    listener.bind(str(Path(util.get_temp_dir()) / "template"))
    listener.listen(64)
    alive_r, alive_w = os.pipe()
    spawn.get_preparation_data = _with_surroundings(spawn.get_preparation_data)
    client: Any = forkserver._forkserver
    client.ensure_running = lambda: None
    client._forkserver_address = listener.getsockname()
    _started = True
    gc.collect()
    gc.freeze()  # or the first collection in a child would write to every page
    parent = os.getpid()
    if os.fork() == 0:
        try:
            os.close(alive_w)
            _serve(parent, listener.detach(), alive_r)
        finally:
            os._exit(1)
    if not shared:
        gc.unfreeze()
    os.close(alive_r)
    listener.close()
    client._forkserver_alive_fd = alive_w  # the template ends when the last holder has


def _serve(server: int, listener: int, alive: int) -> None:
    """The template's life. Each process that it forks ends with it, and it ends with the server."""
    die_with_parent()
    if os.getppid() != server:
        return
    shown.title_range()  # SGLang gives its processes titles
    # A signal to the whole group is the server's to deal with, as long as that lives.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, lambda *_: os.kill(server, signal.SIGQUIT))
    template = os.getpid()

    def become_a_child() -> None:
        if os.getppid() == template:
            die_with_parent()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGQUIT, signal.SIG_DFL)

    os.register_at_fork(after_in_child=become_a_child)
    forkserver.main(listener, alive, preload=[])


Limits = tuple[tuple[int, tuple[int, int]], ...]
"""By its number, the soft and the hard limit."""


class Surroundings:
    """Environment and limits of a process; unpickling one gives them to the process that does."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[dict[str, str], Limits]]:
        limits = tuple((name, resource.getrlimit(name)) for name in LIMITS)
        return _surround, (dict(os.environ), limits)


def _surround(environment: Mapping[str, str], limits: Limits) -> None:
    set_environment(environment)
    for name, value in limits:
        resource.setrlimit(name, value)


def _with_surroundings(original: Original[dict[str, object]]) -> Original[dict[str, object]]:
    """`get_preparation_data` whose result sets them in the child, before all else there."""
    return lambda name: {"toolkit_surroundings": Surroundings(), **original(name)}


def _fork_from_template(original: Original[None], *args: object, **kwargs: object) -> None:
    """SGLang chooses "spawn" for all that it starts after this."""
    original(*args, **kwargs)
    if _started:
        multiprocessing.set_start_method("forkserver", force=True)


PATCH = Patch(
    name="template",
    why="on CPU nearly all of a start is SGLang's imports, in each of its processes",
    processes=frozenset({Process.MAIN}),
    hooks=(Hook(STARTER, _fork_from_template, ("server_args",)),),
    cpu_only=True,
)
