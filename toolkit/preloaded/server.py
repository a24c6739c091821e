"""The preloaded process: wait for requests of the launcher that started it, and fork.

The launcher must be the parent of what is forked: it waits for it, and the kernel ends it when the
launcher ends. So the fork is a double one: the process between ends at once, and the launcher,
which is the reaper of its descendants (`client`), inherits the child. The preloaded process may
then die without harm to any of them.
"""

import contextlib
import ctypes
import json
import os
import resource
import runpy
import signal
import socket
import sys
import types
from collections.abc import Mapping
from typing import NoReturn

from toolkit.preloaded import message, shown
from toolkit.preloaded.reads import Reads

PR_SET_PDEATHSIG = 1
SHOWN = 20
"""Names of variables in an answer."""


def serve(sock: socket.socket, reads: Reads) -> None:
    """Fork what is asked for until the launcher closes its end. For a process with one thread."""
    sock.send(message.READY)
    while (request := message.receive(sock)) is not None:
        start, output = request
        try:
            if different := reads.different(start.environment):
                answer: dict[str, object] = {"different": different[:SHOWN]}
            else:
                child, go = _fork(sock, start, output, reads)
                answer = {"pid": child}
        except OSError as error:
            answer = {"error": error.strerror or str(error)}
        os.close(output)
        sock.send(json.dumps(answer).encode())
        if "pid" in answer:
            if sock.recv(message.LIMIT) == message.GO:
                os.write(go, message.GO)
            os.close(go)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with(parent: int) -> None:
    """End when `parent`, which must be the parent, ends."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def _fork(sock: socket.socket, start: message.Start, output: int, reads: Reads) -> tuple[int, int]:
    """The process id of a new child of the launcher's, which leads a process group, and what it
    waits for: a word written there. It ends when that is closed instead."""
    told, tell = os.pipe()
    wait, go = os.pipe()
    between = os.fork()
    if between == 0:
        child = os.fork()
        if child == 0:
            for each in (told, tell, go):
                os.close(each)
            sock.close()
            _become(start, output, reads, wait)
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        os.write(tell, str(child).encode())
        os._exit(0)
    os.close(tell)
    os.close(wait)
    with os.fdopen(told) as pipe:
        said = pipe.read()
    os.waitpid(between, 0)  # now the child is the launcher's
    if not said:
        os.close(go)
        raise OSError(0, "the preloaded process cannot fork")
    return int(said), go


def _become(start: message.Start, output: int, reads: Reads, wait: int) -> NoReturn:
    """Be `start`. Whatever the launcher would have given it by exec, it gets here."""
    status = 1
    try:
        os.setpgid(0, 0)
        if os.read(wait, len(message.GO)) != message.GO:
            os._exit(1)
        die_with(start.parent)
        _descriptors(output, wait)
        _limits(start)
        set_environment(reads.environment(start.environment))
        _enter(start.folder)
        shown.become(start.command, os.environ)
        _reseed()
        sys.argv = ["-m", *start.arguments]
        # As `python -m`: multiprocessing finds the module's name there.
        sys.modules["__main__"] = types.ModuleType("__main__")
        status = _run(start.module)
        _finish()
    finally:
        os._exit(status)


def _run(module: str) -> int:
    try:
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
    except SystemExit as ended:
        return _exit_status(ended.code)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        _finish()
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as Python ends then
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _enter(folder: str) -> None:
    """The working directory, which `python -m` has in its path."""
    before = os.getcwd()  # noqa: PTH109 (a string)
    if before != folder:
        os.chdir(folder)
        sys.path[:] = [folder if each == before else each for each in sys.path]


def _descriptors(output: int, wait: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for each in {null, output, wait} - {0, 1, 2}:
        os.close(each)


def _limits(start: message.Start) -> None:
    for number, soft, hard in start.limits:
        if resource.getrlimit(number) != (soft, hard):
            resource.setrlimit(number, (soft, hard))
    os.umask(start.umask)
    if os.getpriority(os.PRIO_PROCESS, 0) != start.nice:
        os.setpriority(os.PRIO_PROCESS, 0, start.nice)
    if set(start.cores) != os.sched_getaffinity(0):
        os.sched_setaffinity(0, start.cores)


def set_environment(environment: Mapping[str, str]) -> None:
    """Have just these variables. Only what differs is touched: setproctitle finds the arguments by
    the variables that lie beside them."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment.items() - os.environ.items())


def _reseed() -> None:
    """Generators that were seeded by the system at import; Python's own does it by itself."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _exit_status(code: object) -> int:
    """As Python ends on `sys.exit(code)`."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _finish() -> None:
    """What the interpreter does before it ends: threads, exit functions, buffers."""
    import atexit
    import threading

    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
