"""Stages of decode workers: planned by what the simulator's steps cost, and searched."""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from toolkit.plan.candidate import Candidate
from toolkit.plan.knob import Knob
from toolkit.policies.stages.partition import Partition
from toolkit.policies.stages.qoe import Qoe
from toolkit.policies.stages.staging import against, plan_stages
from toolkit.settings.document import Document, get, put
from toolkit.settings.router.rebalance import following, keys_of
from toolkit.simulate.costs import mixed_of
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.costs.drafted import drafted
from toolkit.simulate.drafting import Drafting
from toolkit.simulate.request import Request

OFF = "off"
KEYS = ("decode", "stages")
MOVES = ("router", "rebalance")
LOOKED_AT = 5000
"""Requests whose lengths are planned for."""
MOST = (2, 3, 4, 6)
"""Stages at most."""


def qoe_of(cost: CostModel, drafting: Drafting | None = None) -> Qoe:
    """QoE of decode steps by a cost model: seconds by output token against requests and KV tokens
    of a batch. Taken between two batches of each, as a step's time is linear in both, or nearly."""
    import numpy as np

    few, many, short, long = 8, 64, 1000, 8000
    steps, tokens = drafted(cost, drafting), drafting.accepted if drafting else 1

    def step_s(requests: int, length: int) -> float:
        seconds = steps.decode_s(np.array([requests]), np.array([requests * length]), 0.0)
        return seconds / tokens

    base = step_s(few, short)
    by_kv = max(0.0, (step_s(few, long) - base) / (few * (long - short)))
    grown = step_s(many, short) - base - by_kv * (many - few) * short
    by_request = max(0.0, grown / (many - few))
    constant = max(0.0, base - few * (by_request + by_kv * short))
    mixed, most = mixed_of(cost)
    return Qoe((constant, by_request, 0.0, 0.0, by_kv), mixed / tokens, most)


class Stager:
    """Plans stages for these requests on any number of decode ranks."""

    def __init__(
        self,
        cost: CostModel,
        requests: Sequence[Request],
        rate: float,
        flying: int | None,
        drafting: Drafting | None = None,
    ) -> None:
        self._answers = [(each.prompt, each.output) for each in requests]
        self._rate = rate
        self._flying = flying
        self._known: dict[tuple[int, int | None], Partition] = {}
        self.qoe = qoe_of(cost, drafting)

    def plan(self, instances: int, slots: int, most: int | None = None) -> Partition:
        """At most so many stages, at the rate at which requests come. In a closed loop, and where
        the ranks cannot keep up, for so many in flight, or for all their `slots`."""
        key = (instances, most)
        if key not in self._known:
            self._known[key] = self._plan(instances, slots, most)
        return self._known[key]

    def _plan(self, instances: int, slots: int, most: int | None) -> Partition:
        full = float(instances * slots)
        if self._flying is None:
            tokens = self._rate * sum(out for _, out in self._answers) / len(self._answers)
            with suppress(ValueError):
                found = plan_stages(
                    *(self._answers, instances, self.qoe), most_stages=most, tokens_per_s=tokens
                )
                if sum(found.requests) <= full:
                    return found
        flying = full if self._flying is None else float(self._flying)
        return plan_stages(self._answers, instances, self.qoe, flying, most_stages=most)

    def why_not(self, instances: int, slots: int) -> str:
        """Why stages cannot win anything here by the model; empty where they may."""
        return against(self.plan(instances, slots), self.qoe)


def stager(
    cost: CostModel, requests: Any, rate: float, flying: int | None, drafting: Drafting | None
) -> Stager:
    """For the first requests of seed 0. `drafting`: of the decode workers, None without a draft."""
    return Stager(cost, list(itertools.islice(requests(0), LOOKED_AT)), rate, flying, drafting)


def staging(own: Candidate, plans: Stager) -> list[Knob]:
    """`decode.stages`: off, or so many stages at most, each time the best for the decode workers
    that there are then. None where stages cannot win anything, or are not possible."""
    if why_not(own, plans):
        return []
    instances, slots = own.deployment.decode.replicas, own.fleet.decode.slots
    counts = {len(plans.plan(instances, slots, most).layout.stages) for most in MOST}
    now = read(own.document)
    values = [OFF, *(str(count) for count in sorted(counts - {1}))]
    if now not in values:
        values.append(now)

    moves, follow = get(own.document, *MOVES), following(plans.qoe)
    keys = keys_of(moves)

    def write(document: Document, value: str) -> Document:
        if get(document, *MOVES) != moves:
            document = put(document, MOVES, moves)
        if value == OFF:
            return put(document, KEYS, None)
        ranks = get(document, "decode", "replicas") or 1
        found = plans.plan(ranks, slots, int(value)).layout
        if len(found.stages) == 1:
            return put(document, KEYS, None)
        stages = [
            ({} if stage.upto is None else {"upto": stage.upto}) | {"replicas": stage.replicas}
            for stage in found.stages
        ]
        if follow and keys is not None:
            document = put(document, MOVES, follow | keys)
        return put(put(document, ("decode", "replicas"), ranks), KEYS, stages)

    return [Knob(".".join(KEYS), tuple(values), read, write)]


def read(document: Document) -> str:
    """How many stages a file has, or that it has none."""
    stages = get(document, *KEYS)
    return str(len(stages)) if stages else OFF


def why_not(own: Candidate, plans: Stager) -> str:
    """Why `decode.stages` is not searched; empty where it is."""
    decode, router = own.deployment.decode, own.fleet.router
    if router.dispatch != "late":
        return "decode.stages is not searched: lengths are known with dispatch: late"
    if decode.replicas < 2:
        return "decode.stages is not searched: one decode worker has all lengths"
    why = plans.why_not(decode.replicas, own.fleet.decode.slots)
    if not why:
        return ""
    advice = "remove them" if decode.stages else "leave them out"
    return f"decode.stages: {advice}, {why}"
