"""Small fleets and requests for the simulator's tests."""

import random
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost
from toolkit.simulate.drafting import Drafting
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet, WorkerFleet
from toolkit.simulate.loop import Loop
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.request import Request

ACCEPTED = st.one_of(st.none(), st.floats(1.0, 4.0))
"""Tokens that a step gives; None: no draft."""
COST = Linear(
    decode=Decode(base=0.01, per_request=1e-4, per_kv_token=1e-6),
    prefill=Prefill(base=0.005, per_token=1e-5),
    transfer=TransferCost(base=0.002, per_token=1e-6),
)


def fleet(
    decode: dict[str, Any] | None = None,
    router: dict[str, Any] | None = None,
    prefill: dict[str, Any] | None = None,
) -> Fleet:
    return Fleet(
        prefill=PrefillFleet(**(prefill or {})),
        decode=DecodeFleet(**(decode or {})),
        router=RouterFleet(**(router or {})),
    )


def plain(policy: str = "round_robin", **worker: Any) -> Fleet:
    """Workers that prefill and decode both."""
    router = RouterFleet(decode_policy=policy)
    return Fleet(worker=WorkerFleet(**worker), router=router)


def drafting(accepted: float | None, share: float | None = None) -> Drafting | None:
    """Three tokens in a chain; None: no draft."""
    if accepted is None:
        return None
    return Drafting(accepted=accepted, verified=4, passes=3, share=share)


def held_by(group: Loop, rank: SimulatedRank) -> float:
    """KV tokens of its batch, by its requests."""
    pace = group.pace
    return sum(r.prompt + r.generated - 1 + (group.steps - r.joined) * pace for r in rank.running)


def beyond(group: Loop) -> int:
    """KV tokens that each running request of a group must find free, its next token left out."""
    found = group.scheduling.drafting
    return 0 if found is None else found.held - 1


def requests(
    count: int, rate: float = 20.0, seed: int = 0, prompt: int = 400, output: int = 60
) -> Iterator[Request]:
    """Poisson arrivals, long-tailed lengths, ten users."""
    source = random.Random(seed)
    now = 0.0
    for number in range(count):
        now += source.expovariate(rate)
        yield Request(
            number,
            now,
            max(1, round(prompt * source.lognormvariate(-0.3, 0.8))),
            max(1, round(output * source.lognormvariate(-0.3, 0.8))),
            user=f"user-{source.randrange(10)}",
        )
