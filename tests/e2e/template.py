"""What the workers of several deployments are forked from (`lending`): `-m tests.e2e.template`.

`patches.preloaded` with one difference: two variables that name folders may differ, and a worker
looks for them after the fork.
"""

import gc
import socket
import sys
import tempfile
from collections.abc import Mapping

from patches.cpu import template
from patches.worker import prepare_imports
from toolkit.preloaded import shown
from toolkit.preloaded.reads import Reads
from toolkit.preloaded.server import serve

OWN = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR")
"""A deployment has a temporary folder of its own. torch sets the other to its default where it is
imported, as some tests do."""


class Shared(Reads):
    """Reads of a template that several deployments share."""

    def different(self, environment: Mapping[str, str]) -> list[str]:
        return [name for name in super().different(environment) if name not in OWN]


def main() -> None:
    """Import, then fork until the test process is gone."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    shown.begin("toolkit::tests-template")
    reads = Shared()
    with reads.recorded(), template.uncollected():
        prepare_imports()
        template.preload()
    template.shared = True
    tempfile.tempdir = None
    gc.collect()
    gc.freeze()
    serve(sock, reads)


if __name__ == "__main__":
    main()
