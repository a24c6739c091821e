"""What benchmarks of simulated fleets share: their GPUs, their traffic, how a ratio is told."""

from collections.abc import Iterable
from dataclasses import dataclass

from toolkit.bench.arrivals import poisson
from toolkit.bench.stats import Ratio
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost
from toolkit.simulate.request import Request
from toolkit.simulate.workloads.traffic import RequestKind


def told(ratio: Ratio) -> dict[str, float]:
    """`pairs`: of how many independent seeds the interval is."""
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high, "pairs": ratio.pairs}


@dataclass(frozen=True)
class Model:
    """A model by its data sheet: bytes of all experts, bytes of a token's KV, operations a token,
    and the share of a layer's experts that a token uses."""

    expert_bytes: float
    kv_bytes: float
    flops: float
    used: float


QWEN3_30B = Model(58e9, 98_304, 6.6e9, 8 / 128)
MODELS = {
    "Qwen3-30B-A3B": QWEN3_30B,
    # 36 layers, 128 experts of 24.9 M at 4.25 bits; every second layer sees 128 tokens only.
    "GPT-OSS-120B": Model(61e9, 36_864, 10.2e9, 4 / 128),
    # By its name 26 B in all, 4 B active, in bf16; experts and KV taken as Qwen3's are.
    "Gemma-4-26B-A4B": Model(46e9, 98_304, 8e9, 8 / 128),
}
"""Those of ELDR's paper."""


def cost(
    ranks: int,
    entries: int,
    memory: float = 4.8e12,
    flops: float = 990e12,
    model: Model = QWEN3_30B,
) -> Linear:
    """A data sheet's GPU (default H200: 4.8 TB/s and 990 TFLOP/s; 0.7 and 0.4 are had) and a model
    whose experts lie over a server's `ranks` GPUs, as parts of the profile's `entries` (layers x
    experts); KV goes over 40 GB/s."""
    bandwidth = 0.7 * memory
    return Linear(
        decode=Decode(
            base=0.003,
            per_request=1e-5,
            per_kv_token=model.kv_bytes / bandwidth,
            per_distinct=model.expert_bytes / ranks / entries / bandwidth,
        ),
        prefill=Prefill(base=0.005, per_token=model.flops / (0.4 * flops)),
        transfer=TransferCost(base=0.003, per_token=model.kv_bytes / 40e9),
    )


BASE = RequestKind(name="", share=1, prompt=(300.0, 1.0), answer=(350.0, 0.8))
MI300X = (5.3e12, 1300e12)
"""Bytes and operations a second."""


def arriving(made: Iterable[Request], rate: float, seed: int) -> list[Request]:
    """The requests at Poisson times, `rate` a second."""
    found = list(made)
    for request, at in zip(found, poisson(rate, len(found), seed), strict=True):
        request.arrived = at
    return found
