"""Who is to run here, by a plan."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.contract.memory_turn import MemoryTurn
from toolkit.contract.variables import FRONT_VARIABLE as FRONT
from toolkit.contract.variables import HEARTBEAT_VARIABLE as HEARTBEAT
from toolkit.contract.variables import ROUTER_NAME_VARIABLE, TURN_VARIABLE
from toolkit.launch import keys
from toolkit.launch.plan import RUN_DIR, Plan
from toolkit.launch.process import Managed
from toolkit.launch.scratch import heartbeats, variables
from toolkit.launch.turns import Turn, turns


def started(
    plan: Plan, run_dir: Path, scratch: Path, front: Sequence[socket.socket]
) -> list[Managed]:
    """The processes that `plan` wants on this machine: its workers, then its routers, each of which
    inherits those of `front` that have its port. They put temporary files into `scratch`."""
    temporary = variables(scratch)
    here = [w for w in plan.workers if w.local]
    waits = turns(here)
    result = [
        Managed(
            name=w.name,
            role=w.role,
            url=w.url,
            health_url=w.health_url,
            command=_within(run_dir, w.command),
            env={
                **temporary,
                **_in(run_dir, w.env),
                HEARTBEAT: str(heartbeats(scratch, w.name)),
                **_turn(scratch, w.name, waits[w.name]),
            },
            log=run_dir / f"{w.name}.log",
            after=waits[w.name].ready,
            without=keys.not_for_workers(plan),
        )
        for w in here
    ]
    workers = [m.name for m in result]
    for router in plan.own_routers:
        passed = [each.fileno() for each in front if each.getsockname()[1] == router.port]
        inherits = {FRONT: ",".join(map(str, passed))} if passed else {}
        result.append(
            Managed(
                name=router.name,
                role="router",
                url=router.url,
                health_url=f"{router.url}/readiness",
                command=_within(run_dir, router.command),
                env={**temporary, **router.env, **inherits},
                log=run_dir / f"{router.name}.log",
                # SGLang's router fills its log with complaints about workers not yet there.
                after=workers if router.kind == "sglang" else (),
                without=(*keys.not_for_the_router(plan), ROUTER_NAME_VARIABLE),
                passed=passed,
            )
        )
    return result


def _turn(scratch: Path, name: str, turn: Turn) -> dict[str, str]:
    """What a worker is told of those with which it shares a GPU."""
    if not turn.memory and not turn.asked:
        return {}
    folder = scratch / "memory"
    folder.mkdir(exist_ok=True)
    after = dict(turn.memory)
    return {TURN_VARIABLE: MemoryTurn(folder=str(folder), own=name, after=after).text}


def _within(run_dir: Path, command: Sequence[str]) -> list[str]:
    return [part.replace(RUN_DIR, str(run_dir)) for part in command]


def _in(run_dir: Path, env: Mapping[str, str]) -> dict[str, str]:
    return {name: value.replace(RUN_DIR, str(run_dir)) for name, value in env.items()}
