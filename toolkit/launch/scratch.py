"""Where the processes of a deployment put temporary files; gone when it has ended.

SGLang names its sockets by five temporary files a server, and again after each restart, and removes
neither files nor sockets.
"""

import os
import stat
import tempfile
from pathlib import Path

from toolkit.launch.errors import LaunchError

PREFIX = "toolkit-"
SOCKET_PATH = 107
"""Bytes that the name of a Unix socket may have."""
NAME = len("/tmp12345678")


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A new folder, as a context manager; what cannot be removed is left. LaunchError: nowhere to
    make one."""
    try:
        return tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise LaunchError(f"temporary files: {error.strerror}; set TMPDIR to a folder") from error


def heartbeats(folder: Path, worker: str) -> Path:
    """Where a worker's processes write that they go on (`toolkit.contract.heartbeat`)."""
    return folder / "heartbeats" / worker


def variables(folder: Path) -> dict[str, str]:
    """Have a process use the folder. What torch has compiled stays where the next one finds it.

    Nothing, where sockets in the folder would have names too long for the kernel.
    """
    if len(os.fsencode(folder)) + NAME > SOCKET_PATH:
        return {}
    compiled = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"
    kept = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not kept:  # what lies there is run
        kept = str(compiled if _is_own(compiled) else folder / "torchinductor")
    return {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": kept}


def _is_own(folder: Path) -> bool:
    """Whether a folder of a name that everybody knows is this user's, and nobody else can write in
    it; made where there is none."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    is_folder = stat.S_ISDIR(found.st_mode)
    return is_folder and found.st_uid == os.getuid() and not found.st_mode & 0o022
