"""Routers and stand-in workers, forked from one process that has imported what they import.

A test that starts a router over three workers would else spend a second of CPU on imports. The way
is that of CPU workers (`toolkit.preloaded`): the same arguments, environment and signals as if
started plainly, a child of the test, gone when the test is. One such process serves a test run.
"""

import gc
import importlib
import socket
import sys

from tests.preloading import Preloading
from toolkit.preloaded import server, shown
from toolkit.preloaded.reads import Reads

MODULES = (
    "httptools", "numpy", "orjson", "tests.standin.faults", "tests.standin.patient",
    "tests.standin.signatures", "tests.standin.streams", "toolkit.front", "toolkit.router.app",
    "toolkit.settings.router.config", "toolkit.router.connections", "toolkit.router.descriptors",
    "toolkit.router.listener", "toolkit.router.quiet", "toolkit.signatures", "uvloop",
)  # fmt: skip
WAIT_LIMIT_S = 60.0

start = Preloading("tests.standin.forking", WAIT_LIMIT_S).start


def main() -> None:
    """Import, then fork until the test run is gone."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    server.die_with_parent()
    shown.begin("toolkit::tests")
    reads = Reads()
    with reads.recorded():
        for name in MODULES:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    server.serve(sock, reads)


if __name__ == "__main__":
    main()
