"""What a supervisor leaves to the code that takes its place in the same process: its sockets, the
shared numbers, and the processes that it has forked."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from toolkit.contract.variables import GENERATION_VARIABLE

NAME = "supervisor.json"


class SupervisorState(msgspec.Struct, frozen=True):
    """Sockets and `memory` (of the shared numbers) are descriptors. `children`: pid, row, whether
    it decides; `serial`: how many were ever forked; `config`: the file that was rehearsed."""

    folder: str
    config: str
    relays: int
    rows: int
    memory: int
    sockets: list[int]
    admin_sockets: list[int]
    serial: int
    children: list[tuple[int, int, bool]]


def become(config_path: str, state: SupervisorState, blocked: Iterable[signal.Signals]) -> None:
    """Run the code that is on the disk now in this process, from its begin. `blocked`: signals that
    wait until it listens to them. OSError: it cannot be run, and nothing has changed."""
    path = Path(state.folder) / NAME
    path.write_bytes(msgspec.json.encode(state))
    numbers = (*state.sockets, *state.admin_sockets, state.memory)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    for number in numbers:
        os.set_inheritable(number, True)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", "toolkit.router", config_path]
    try:
        os.execve(sys.executable, command, os.environ | {GENERATION_VARIABLE: str(path)})
    finally:
        for number in numbers:
            os.set_inheritable(number, False)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def inherited() -> SupervisorState | None:
    """What was left to this one; None: there was none before. Taken out of the environment."""
    path = os.environ.pop(GENERATION_VARIABLE, "")
    if not path:
        return None
    state = msgspec.json.decode(Path(path).read_bytes(), type=SupervisorState)
    for number in (*state.sockets, *state.admin_sockets, state.memory):
        os.set_inheritable(number, False)
    return state
