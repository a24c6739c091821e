"""What a launcher has for itself while it runs: its run folder, and the ports of its processes.

Each is a file that is locked (flock) by the launcher's process. The kernel drops the lock when the
process ends, however it ends, so what a killed launcher leaves is a small file that stops nobody.
The ports' files lie in one folder a user, whatever TMPDIR and TOOLKIT_RUNS say: two launches from
different shells must see each other. Another user's launch does not see them; it finds the ports
in use (`checks.ports`), or somebody else behind them (`identity`).
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep

from toolkit.bounded_files import read_json
from toolkit.contract.addresses import is_unspecified, loopback_like
from toolkit.launch import trees
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.plan import Plan
from toolkit.launch.state import prepare_run_dir

LOCK = "launcher.lock"
VARIABLE = "TOOLKIT_LOCKS"
"""Another folder for the ports' locks, where the usual one cannot be had."""

NAMED_S = 0.5
"""A launcher that has locked a file gets so long to write into it who it is."""


@dataclass(frozen=True)
class Holder:
    """The launcher that has something, as it wrote into the locked file."""

    pid: int
    start_ticks: int
    name: str
    folder: str

    def __str__(self) -> str:
        return f"run {self.folder} (deployment {self.name}, launcher pid {self.pid})"


class ClaimHeld(Exception):
    """Somebody else has it; `holder` is None where it has not said who it is."""

    def __init__(self, holder: Holder | None) -> None:
        self.holder = holder
        super().__init__(str(holder or "another launcher that begins just now"))


@contextlib.contextmanager
def hold(plan: Plan, run_dir: Path) -> Iterator[None]:
    """Have the run folder (made where it is missing) and all local ports of `plan`.

    Raises:
        LaunchError: another launcher has one of them; it names the run and how to go on.
    """
    prepare_run_dir(run_dir)
    _prepare_folder()
    me = trees.look(os.getpid())
    mine = Holder(os.getpid(), me.start if me else 0, plan.name, str(run_dir))
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(_locked(run_dir / LOCK, mine))
        except ClaimHeld as error:
            repair = f"stop it (toolkit stop --run {run_dir}), or give another --run-dir"
            problem = Problem(str(run_dir), f"is the folder of {error}", repair)
            raise LaunchError([problem]) from error
        # All launchers go through the ports in one order: of two that meet, one gets all.
        for port, address, name in sorted(_ports(plan)):
            try:
                held.enter_context(_locked(_port_file(address, port), mine))
            except ClaimHeld as error:
                raise LaunchError([taken(name, port, error.holder)]) from error
        yield


def holder(address: str, port: int) -> Holder | None:
    """The living launcher of this user that has a port; None: none, as far as can be seen."""
    found = _read(_port_file(address, port))
    return found if found and trees.is_running(found.pid, found.start_ticks) else None


def claimed() -> set[int]:
    """Ports that living launchers of this user have, on any address; some may not be open yet."""
    found = set()
    for path in _folder().glob(f"{_space()}-*.lock"):
        by = _read(path)
        if by and trees.is_running(by.pid, by.start_ticks):
            found.add(int(path.stem.rpartition("-")[2]))
    return found


def taken(name: str, port: int, by: Holder | None) -> Problem:
    """The problem of process `name`, whose port another launcher has."""
    who = str(by or ClaimHeld(None))
    stop = f"stop it (toolkit stop --run {by.folder})" if by else "start again when that one is up"
    return Problem(name, f"port {port} is taken by {who}", f"{stop}, or set other ports")


def _ports(plan: Plan) -> set[tuple[int, str, str]]:
    """Port, address and process of each that this machine is to open."""
    found = {(port, w.address, w.name) for w in plan.workers if w.local for port in w.ports}
    for router in plan.own_routers:
        found.add((router.port, router.host, router.name))
        if admin := (router.config or {}).get("admin_port"):
            found.add((admin, loopback_like(router.host), f"{router.name}.admin_port"))
    return found


def _port_file(address: str, port: int) -> Path:
    where = "all" if is_unspecified(address) else address.replace(":", "_").replace("/", "_")
    return _folder() / f"{_space()}-{where}-{port}.lock"


def _space() -> int:
    """A network namespace (a container that shares /tmp) has ports of its own."""
    try:
        return Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return 0


def _folder() -> Path:
    given = os.environ.get(VARIABLE)
    return Path(given).expanduser() if given else Path(f"/tmp/toolkit-locks-{os.getuid()}")


def _prepare_folder() -> None:
    folder, repair = _folder(), f"set {VARIABLE} to a folder of your own"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise LaunchError([Problem(str(folder), "for locks: it is not this user's", repair)])
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        what = f"no folder for locks: {error.strerror}"
        raise LaunchError([Problem(str(folder), what, repair)]) from error


@contextlib.contextmanager
def _locked(path: Path, mine: Holder) -> Iterator[None]:
    """Have the file at `path` alone; it is removed at the end. Held: somebody has it."""
    fd = _lock(path)
    try:
        with contextlib.suppress(OSError):  # a full disk: the lock is what counts
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(asdict(mine)).encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while it is locked: nobody else can have it yet
        os.close(fd)


def _lock(path: Path) -> int:
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LaunchError(f"cannot open the lock {path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, fd):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise ClaimHeld(_named(path)) from None
        except OSError as error:
            os.close(fd)
            repair = "use a folder on a local file system"
            raise LaunchError([Problem(str(path), f"lock: {error.strerror}", repair)]) from error
        os.close(fd)  # who had it has removed the file since we opened it: once more


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _named(path: Path) -> Holder | None:
    """Who has a lock. The holder writes that down in the moment after it has locked the file."""
    end = monotonic() + NAMED_S
    while (found := _read(path)) is None and monotonic() < end:
        sleep(NAMED_S / 50)
    return found


def _read(path: Path) -> Holder | None:
    try:
        return Holder(**read_json(path))
    except (OSError, ValueError, TypeError):
        return None
