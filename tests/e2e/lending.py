"""One process that has imported SGLang lends its forks to every deployment of a test process.

Each launcher has such a process of its own, and importing SGLang takes 11 s of CPU. Deployments
that are started one after the other in the same test process fork from the same one. The shared
deployment of launch/cpu-demo.yaml and all that `toolkit launch` starts keep their own, as users
have it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

from tests.preloading import Preloading
from toolkit.contract.variables import HEARTBEAT_VARIABLE, RUN_ID_VARIABLE, WORKER_KEY_VARIABLE
from toolkit.launch import processes
from toolkit.preloaded.client import Different, Forked, Preloaded, State, adopt

WAIT_LIMIT_S = 300.0
OF_A_RUN = ("TMPDIR", WORKER_KEY_VARIABLE, HEARTBEAT_VARIABLE, RUN_ID_VARIABLE)
"""Variables that no shared process may have: it outlives the run."""

_lock = threading.Lock()
_templates: list[Preloading] = []


class Lent(Preloaded):
    """What a launcher's own preloaded process would be: always ready, and nobody's to end."""

    def __init__(self) -> None:
        self.process = None
        self.state = State.READY
        adopt(+1)

    @property
    def timer(self) -> float | None:
        return None

    def tick(self, now: float) -> None:
        """Nothing: it imports when the first worker asks."""

    def fork(
        self, module: str, command: tuple[str, ...], environment: Mapping[str, str], output: int
    ) -> Forked:
        """From the first that has the same variables where SGLang reads them at import."""
        with _lock:
            for template in _templates:
                try:
                    return template.ready().fork(module, command, environment, output)
                except Different:
                    continue
            shared = {k: v for k, v in environment.items() if k not in OF_A_RUN}
            template = Preloading("tests.e2e.template", WAIT_LIMIT_S, **shared)
            _templates.append(template)
            return template.ready().fork(module, command, environment, output)

    def close(self) -> None:
        """The deployment has ended; the shared process goes on."""
        self.state = State.GIVEN_UP
        adopt(-1)


@contextmanager
def lent() -> Iterator[None]:
    """Launchers that are made in here have no preloaded process of their own."""
    with mock.patch.object(processes, "preloaded", lambda workers, *_: Lent() if workers else None):
        yield
