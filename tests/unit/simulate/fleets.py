"""Small fleets and requests for the simulator's tests."""

import random
from collections.abc import Iterator
from typing import Any

from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet, WorkerFleet
from toolkit.simulate.request import Request

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
