"""Processes that have imported SGLang, from which the workers of a test process are forked.

Importing SGLang takes 9 s of CPU, and each launcher does it once for its own workers. Deployments
and workers that one test process starts one after the other are forked from the same process
instead, as long as no variable differs for them that SGLang reads at import. The shared deployment
of `launch/cpu-demo.yaml` and all that `toolkit launch` starts import for themselves, as users' do.
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any
from unittest import mock

from tests.preloading import Preloading, Process, in_project, plainly
from toolkit.contract.variables import HEARTBEAT_VARIABLE, RUN_ID_VARIABLE, WORKER_KEY_VARIABLE
from toolkit.launch import processes
from toolkit.launch.command import CPU_ENV
from toolkit.preloaded.client import Different, Forked, Preloaded, State, adopt
from toolkit.preloaded.reads import UNSEEN

WAIT_LIMIT_S = 300.0
KEPT = 2
"""How many of them a test process keeps: each takes 0.5 GB. A test process had as many before: one
for its own workers, and one of the launcher that ran."""
OF_A_RUN = ("TMPDIR", WORKER_KEY_VARIABLE, HEARTBEAT_VARIABLE, RUN_ID_VARIABLE)
"""Variables that none of them may have: it outlives the run."""

_read = {*os.environ, *CPU_ENV, "SGLANG_LOG_REQUEST_HEADERS"}
"""Variables that each of them gets. A module that copies the environment reads all that is there,
so each has little: another variable only once a worker could not be forked for it."""
_lock = threading.Lock()
_templates: list[Preloading] = []
"""Who forked last comes last."""


def fork(
    module: str, command: tuple[str, ...], environment: Mapping[str, str], output: int
) -> Forked:
    """A child of this process, as `Preloaded.fork`, from one that has the same variables where
    SGLang reads them at import; a new one is made where none has, and the eldest ends.

    Raises:
        Different: as `Preloaded.fork`.
    """
    with _lock:
        for template in reversed(_templates):
            try:
                forked = template.ready().fork(module, command, environment, output)
            except Different as different:
                _read.update(different.names)
                continue
            _templates.remove(template)
            _templates.append(template)
            return forked
        while len(_templates) >= KEPT:
            _templates.pop(0).close()
        _templates.append(_for(environment))
        try:
            return _templates[-1].ready().fork(module, command, environment, output)
        except Different as different:  # the next one that is made has them
            _read.update(different.names)
            raise


def _for(environment: Mapping[str, str]) -> Preloading:
    """One from which a process with these variables can be forked, as far as is known."""
    shared = {
        name: value
        for name, value in environment.items()
        if name not in OF_A_RUN and (name in _read or name.startswith(UNSEEN))
    }
    return Preloading("tests.e2e.template", WAIT_LIMIT_S, shared)


def start(module: str, *arguments: str, env: Mapping[str, str], output: IO[Any]) -> Process:
    """`python -m module arguments...` in the project's folder, leading a process group; both its
    outputs go to `output`."""
    command = (sys.executable, "-m", module, *arguments)
    with in_project():
        try:
            return fork(module, command, env, output.fileno())
        except Different:
            return plainly(command, env, output)


class Lent(Preloaded):
    """What a launcher's own preloaded process would be: always ready, and nobody's to end."""

    def __init__(self) -> None:
        self.process = None
        self.state = State.READY
        adopt(+1)

    @property
    def timer(self) -> float | None:
        """None: it has nothing to do by itself."""
        return None

    def tick(self, now: float) -> None:
        """Nothing: it imports when the first worker asks."""

    def fork(
        self, module: str, command: tuple[str, ...], environment: Mapping[str, str], output: int
    ) -> Forked:
        """As the function of that name."""
        return fork(module, command, environment, output)

    def close(self) -> None:
        """The deployment has ended; those from which its workers were forked go on."""
        self.state = State.GIVEN_UP
        adopt(-1)


@contextmanager
def lent() -> Iterator[None]:
    """Launchers that are made in here have no preloaded process of their own."""
    with mock.patch.object(processes, "preloaded", lambda workers, *_: Lent() if workers else None):
        yield
