"""What experts did while a variant was up: who moves them beside it, how often, and the load.

The relocator says the load itself, of the requests that it samples. Of SGLang's EPLB a worker's log
tells that it moved: `sglang:eplb_balancedness` would say the load, for a sum over all ranks in each
step, which the other arms do not pay.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.bench.errors import BenchError
from toolkit.bench.runner import new_session
from toolkit.bench.target import get_json
from toolkit.bounded_files import parse_json
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch.keys import key_at
from toolkit.launch.state import read_state

if TYPE_CHECKING:
    from toolkit.bench.suite.question import MovingExperts

DECIDES_ON = (256, 8192)
"""Sampled tokens that a decision takes: half of what is decoded meanwhile, within these."""
LEAST_SHARE = 0.1
LOG = "relocate.log"
STOP_S, ASK_S = 10.0, 60.0
WORKS = ("watching", "moving")
"""States of a relocator that does what it is for."""
ENDS = re.compile(rb"\[EPLBManager\] rebalance end")
PIECE, TAIL = 1 << 20, 1 << 16
"""Bytes of a log that are looked at together, and of its end."""


@dataclass(slots=True)
class ExpertsMoved:
    """Of one start of a variant. `times` that experts moved: orders of the relocator or EPLB's
    rebalances. `balance`: the busiest rank's load over the mean where experts lay at first, and
    where they lay in the end; None where nobody says it. `longest_s` that ranks stood still."""

    variant: str
    times: int = 0
    balance: tuple[float, float] | None = None
    longest_s: float | None = None


def relocate_flags(every: int, in_flight: int) -> list[str]:
    """Of `toolkit relocate`: sampled so that a decision every so many decode steps has tokens
    enough, of so many requests that decode together."""
    least, most = DECIDES_ON
    decoded = every * in_flight
    tokens = max(least, min(most, decoded // 2))
    share = max(LEAST_SHARE, min(1.0, 2 * tokens / decoded))
    return ["--every", str(every), "--tokens", str(tokens), "--share", f"{share:g}"]


@contextmanager
def moved(
    variant: str, moving: MovingExperts, run_dir: Path, in_flight: int
) -> Iterator[ExpertsMoved]:
    """While the run is up; what is yielded is filled in on the way out.

    BenchError: the relocator does not start, or ends too soon.
    """
    found = ExpertsMoved(variant)
    if not moving.relocates:
        yield found
        found.times = rebalances(run_dir)
        return
    with _relocator(run_dir, relocate_flags(moving.steps, in_flight)) as (process, url):
        yield found
        if process.poll() is not None:
            raise BenchError(f"toolkit relocate ended: {_end(run_dir)}")
        asyncio.run(_ask(url, found))


@contextmanager
def _relocator(run_dir: Path, flags: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`toolkit relocate`, and where it listens."""
    command = [sys.executable, "-m", "toolkit", "relocate", "--run", str(run_dir), *flags]
    env = {**os.environ, **_key(run_dir)}
    with (
        (run_dir / LOG).open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=env) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline(TAIL)
            if not line:
                raise BenchError(f"toolkit relocate ended at its start: {_end(run_dir)}")
            yield process, parse_json(line)["listening"]
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _key(run_dir: Path) -> dict[str, str]:
    """The workers' key, which only this process knows: the run's folder is the suite's own."""
    urls = [row["url"] for row in read_state(run_dir)["workers"] if row.get("url")]
    found = next((key for url in urls if (key := key_at(url))), None)
    return {WORKER_KEY_VARIABLE: found} if found else {}


def rebalances(run_dir: Path) -> int:
    """How often EPLB moved the experts of the run's decode servers, by the busiest log: each rank
    of a server says it in the same one."""
    return max((_lines(log) for log in run_dir.glob("decode-*.log")), default=0)


def _lines(log: Path) -> int:
    """Rebalances by the rank that says most."""
    ranks: dict[bytes, int] = {}
    with log.open("rb") as file:
        for line in iter(lambda: file.readline(PIECE), b""):
            if ENDS.search(line):
                name = line.partition(b"]")[0].partition(b" DP")[2]
                ranks[name] = ranks.get(name, 0) + 1
    return max(ranks.values(), default=0)


async def _ask(url: str, found: ExpertsMoved) -> None:
    """The relocator's own figures; where it has not decided yet, it is asked what it would."""
    import aiohttp

    try:
        async with new_session(ASK_S, None) as session:
            async with session.post(url + "/relocate", json={"dry_run": True}):
                pass  # one that has seen too little says so, and has decided nothing
            servers: Mapping[str, Mapping[str, Any]] = await get_json(session, url + "/")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise BenchError(f"toolkit relocate does not answer: {error!r}") from error
    for name, each in servers.items():
        if each["state"] not in WORKS:
            raise BenchError(f"toolkit relocate moves nothing on {name}: {each['state']}")
    decisions = [each["decided"] for each in servers.values() if each["decided"]]
    found.times = sum(each["orders"] for each in servers.values())
    if found.times:
        found.longest_s = max(each["longest_s"] for each in servers.values())
    if decisions:
        first = max(each[0]["balance"][0] for each in decisions)
        last = max(_in_the_end(each) for each in decisions)
        found.balance = first, last


def _in_the_end(decided: list[Mapping[str, Any]]) -> float:
    """Busiest rank over mean under the last map, on the requests that were last looked at."""
    last = decided[-1]
    return float(last["balance"][1 if last.get("outcome") == "moved" else 0])


def _end(run_dir: Path) -> str:
    """The last line of its log."""
    with (run_dir / LOG).open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL))
        lines = log.read(TAIL).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
