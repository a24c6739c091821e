"""Decode batches replayed on one worker of its own: what their steps take without neighbours."""

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import percentile
from tests.benchmarks.shared.eldr_batches import Batch, Moments
from tests.benchmarks.shared.eldr_rounds import say
from toolkit.bench.errors import BenchError
from toolkit.bench.hosted import hosted
from toolkit.bench.listen import DecodeWatch
from toolkit.bench.runner import new_session
from toolkit.launch.keys import headers_at

TOKENS = 20
"""Generated in a replay: so many steps of the whole batch, less a few at the edges."""
ENOUGH = 8
WORKER = {
    "name": "eldr-replay",
    "device": "cpu",
    "mode": "plain",
    "capture_experts": True,
    "worker": {"kv_tokens": 16384, "max_running": 32},
    "router": {"kind": "toolkit", "decode_policy": "round_robin"},
}


@dataclass(frozen=True, slots=True)
class Played:
    """A batch that was replayed: `step_ms` is its median decode step (CPU time of the scheduler's
    thread on CPU), `distinct` the mean of its distinct experts over steps and MoE layers."""

    size: int
    step_ms: float
    distinct: float


@contextmanager
def one_worker(model: Path | None) -> Iterator[dict[str, Any]]:
    """A plain server (prefill and decode in one) of a model folder (None: the embedded model) and
    nothing else that computes; yields the router's `GET /workers` row of it."""
    served = {} if model is None else {"model": str(model.absolute())}
    with tempfile.TemporaryDirectory(prefix="eldr-replay-") as folder:
        path = Path(folder) / "worker.yaml"
        path.write_text(json.dumps({**WORKER, **served}))  # JSON is YAML
        with hosted(path, Path(folder)) as up:
            worker = up.workers[0]
            yield {"name": worker.name, "role": "plain", "url": worker.url, "dp_rank": 0}


async def replay(
    session: Any, row: dict[str, Any], moments: Sequence[Sequence[Sequence[Batch]]], seed: int
) -> list[list[list[Played]]]:
    """`moments[m][a]` are arm a's batches at moment m; the same shape is returned, less the batches
    without a request. At a moment the arms alternate, batch by batch, in random order.

    BenchError: a replay failed, or its steps were not heard.
    """
    source = random.Random(f"replay-{seed}")
    plays: list[tuple[int, int, Batch]] = []
    for m, arms in enumerate(moments):
        for batches in zip(*arms, strict=True):  # one worker of each arm
            plays += source.sample([(m, a, b) for a, b in enumerate(batches)], len(arms))
    plays = [play for play in plays if play[2].requests]
    spans = []
    async with DecodeWatch(session, {"workers": [row]}) as listener:
        for _, _, batch in [plays[0], *plays]:  # the first once more, to warm up
            begin = time.monotonic()
            await _generate(session, row["url"], batch)
            spans.append((begin, time.monotonic()))
        await asyncio.sleep(0.5)
        heard = await listener.take(len(spans))
    if heard is None or listener.note:
        raise BenchError(f"the worker was not heard: {listener.note}")
    found: list[list[list[Played]]] = [[[] for _ in arms] for arms in moments]
    for (m, a, batch), span in zip(plays, spans[1:], strict=True):
        found[m][a].append(_played(heard, len(batch.requests), *span))
    return found


async def _generate(session: Any, url: str, batch: Batch) -> None:
    body = {
        "input_ids": batch.requests,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": TOKENS, "ignore_eos": True},
    }
    mine = headers_at(url)
    async with session.post(url + "/generate", json=body, headers=mine) as response:
        if response.status != 200:
            raise BenchError(f"a replay failed: {(await response.text())[:300]}")
        await response.read()


def _played(heard: Any, size: int, since: float, until: float) -> Played:
    # A worker's clock is known to milliseconds only.
    part = heard.between(since - 0.005, until + 0.005)
    [rank] = part.ranks
    whole = rank.steps[rank.steps[:, part.columns.index("requests")] == size]
    if len(whole) < ENOUGH:
        raise BenchError(f"a batch of {size} was whole in {len(whole)} of its steps only")
    whole = whole[1:]
    own = "cpu_seconds" if part.own_clock == "cpu" else "seconds"
    steps = 1e3 * whole[:, part.columns.index(own)]
    return Played(size, percentile(steps.tolist(), 50), float(heard.distinct(whole).mean()))


async def replayed(
    recorded: Sequence[Moments], model: Path | None = None
) -> list[list[list[Played]]]:
    """What the steps of these rounds' batches take on a worker of its own; by arm and round."""
    rounds: list[list[list[list[Played]]]] = []
    with one_worker(model) as row:
        async with new_session(300.0) as session:
            for number, moments in enumerate(recorded):
                rounds.append(await replay(session, row, moments, number))
                say(f"replayed round {number + 1}/{len(recorded)}")
    return by_round(rounds)


def by_round(found: Sequence[Sequence[Sequence[Sequence[Played]]]]) -> list[list[list[Played]]]:
    """`[round][moment][arm]` to `[arm][round]`: what was replayed of all moments of a round.

    Moments of one round see the same requests in the same places, a few seconds later: only rounds
    are independent, and each gives one value.
    """
    rounds = [[list(chain(*arm)) for arm in zip(*moments, strict=True)] for moments in found]
    return [list(arm) for arm in zip(*rounds, strict=True)]


def tpot(rounds: Sequence[Sequence[Played]], percent: float) -> list[float]:
    """A percentile of the replayed TPOT in each round, ms."""
    return [percentile(by_token(one), percent) for one in rounds]


def by_token(played: Sequence[Played]) -> list[float]:
    """Of every request of these batches what its next token takes, ms."""
    return [one.step_ms for one in played for _ in range(one.size)]
