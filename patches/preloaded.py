"""The process that every CPU worker of a deployment is forked from: `-m patches.preloaded SOCKET`.

The launcher starts it (`toolkit.preloaded.client`). It imports what a worker imports and loads no
plugin: which patches a process gets depends on its environment, which it has only after the fork.
"""

import gc
import socket
import sys

from patches.cpu import template
from patches.worker import prepare_imports
from toolkit.preloaded import shown
from toolkit.preloaded.reads import Reads
from toolkit.preloaded.server import serve


def main() -> None:
    """Import, then fork until the launcher is gone."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    shown.begin("toolkit::preloaded")
    reads = Reads()
    with reads.recorded(), template.uncollected():
        prepare_imports()
        template.preload()
    template.shared = True
    gc.collect()
    gc.freeze()  # or the first collection in a child would write to every page
    serve(sock, reads)


if __name__ == "__main__":
    main()
