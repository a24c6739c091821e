"""Where a deployment is, and when it goes on. Pure: what is seen goes in, a move comes out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan
from toolkit.launch.process import FINAL, Managed, Status
from toolkit.settings.processes import Timeouts


class Phase(StrEnum):
    """Where the deployment is."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


OVER = frozenset({Phase.STOPPED, Phase.FAILED})
"""Nothing follows."""


class PhaseMove(NamedTuple):
    """Go to `phase`, and tell `text`. `problems`: why the deployment has failed."""

    phase: Phase
    text: str | None = None
    problems: Sequence[Problem] = ()


@dataclass(frozen=True)
class PhaseInputs:
    """What a move depends on. `stop`: somebody asked for the end; `at_once`: without waiting for
    anything. `late`: the phase has lasted longer than its `limit`."""

    plan: Plan
    processes: Sequence[Managed]
    stop: bool = False
    at_once: bool = False
    late: bool = False


def limit(phase: Phase, timeouts: Timeouts) -> float:
    """How many seconds a phase may last."""
    limits = {
        Phase.STARTING: timeouts.start,
        Phase.DRAINING: timeouts.drain,
        Phase.STOPPING: timeouts.stop,
    }
    return limits.get(phase, math.inf)


def next_move(phase: Phase, seen: PhaseInputs) -> PhaseMove | None:
    """Where to go from `phase`; None: stay. Two more moves come with answers, see the supervisor:
    to READY when something was generated, to STOPPING when nothing is in flight any more."""
    if seen.at_once and phase in (Phase.STARTING, Phase.READY, Phase.DRAINING):
        return PhaseMove(Phase.STOPPED, "stopping at once")
    leave = _LEAVE.get(phase)
    return leave(seen) if leave else None


def _starting(seen: PhaseInputs) -> PhaseMove | None:
    if seen.stop:
        return PhaseMove(Phase.STOPPING)
    dead = [m for m in seen.processes if m.status in FINAL]
    if dead:
        return _failed([_death(m) for m in dead])
    if seen.late:
        return _failed(_what_is_missing(seen))
    elsewhere = bool(seen.plan.routers) and not seen.plan.own_routers
    if elsewhere and all(m.status is Status.READY for m in seen.processes):
        return PhaseMove(Phase.READY, "own workers are ready (the router runs elsewhere)")
    return None


def _ready(seen: PhaseInputs) -> PhaseMove | None:
    if seen.stop:
        return _stop_from_ready(seen.plan)
    # What died too often rests and is tried again; only a refusal cannot get better.
    routers = [m for m in seen.processes if m.role == "router"]
    if routers and all(m.status in FINAL for m in routers):
        return _failed([_death(m) for m in routers])
    workers = [m for m in seen.processes if m.role != "router"]
    if workers and all(m.status in FINAL for m in workers):
        return _failed([Problem(m.name, f"refused: {m.note}", f"see {m.log}") for m in workers])
    return None


def _stop_from_ready(plan: Plan) -> PhaseMove:
    """Only our own routers, run from here, can be told to take nothing new."""
    if any(router.kind == "toolkit" for router in plan.own_routers):
        return PhaseMove(Phase.DRAINING, "draining: no new requests (again to stop at once)")
    return PhaseMove(Phase.STOPPING)


def _draining(seen: PhaseInputs) -> PhaseMove | None:
    if not seen.late:
        return None
    seconds = limit(Phase.DRAINING, seen.plan.timeouts)
    return PhaseMove(Phase.STOPPING, f"requests still in flight after {seconds:.0f} s are dropped")


def _stopping(seen: PhaseInputs) -> PhaseMove | None:
    gone = all(m.popen is None for m in seen.processes)
    return PhaseMove(Phase.STOPPED) if gone or seen.at_once or seen.late else None


_LEAVE: dict[Phase, Callable[[PhaseInputs], PhaseMove | None]] = {
    Phase.STARTING: _starting,
    Phase.READY: _ready,
    Phase.DRAINING: _draining,
    Phase.STOPPING: _stopping,
}


def _failed(problems: Sequence[Problem]) -> PhaseMove:
    return PhaseMove(Phase.FAILED, problems=problems)


def _death(m: Managed) -> Problem:
    return Problem(m.name, f"{m.note}\n{m.tail()}", f"see {m.log}")


def _told(m: Managed) -> str:
    return f"{m.status}: " + "; ".join(filter(None, (m.note, m.probed)))


def _what_is_missing(seen: PhaseInputs) -> list[Problem]:
    """Why the start has taken too long: who is not ready, or that nothing can be generated."""
    seconds = limit(Phase.STARTING, seen.plan.timeouts)
    late = [
        Problem(
            m.name,
            f"not ready after {seconds:.0f} s ({_told(m)})\n{m.tail()}",
            f"see {m.log}, or raise timeouts.start",
        )
        for m in seen.processes
        if m.status is not Status.READY
    ]
    return late or [Problem("generation", f"no generation within {seconds:.0f} s")]
