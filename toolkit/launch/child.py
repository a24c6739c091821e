"""Become a worker that cannot outlive its parent: `python -I -S child.py PARENT_PID COMMAND...`.

Asks the kernel for SIGKILL when the parent's thread ends (kept across exec), makes sure that this
has not happened already, and turns into COMMAND. Runs after exec and so, unlike a preexec_fn, is
safe in a launcher with threads. Standard library only.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Arm and exec; exit status 127 when COMMAND cannot be run."""
    parent, argv = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the launcher is gone")
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"cannot run {argv[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
