"""What benchmarks of simulated fleets share: their GPUs, their traffic, how a ratio is told."""

from __future__ import annotations

from toolkit.bench.stats import Ratio
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, Transfer
from toolkit.simulate.workloads.traffic import Kind


def told(ratio: Ratio) -> dict[str, float]:
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high}


def cost(ranks: int, entries: int, memory: float = 4.8e12, flops: float = 990e12) -> Linear:
    """A data sheet's GPU (default H200: 4.8 TB/s and 990 TFLOP/s; 0.7 and 0.4 are had) and
    Qwen3-30B-A3B: 58 GB of experts over a server's `ranks` GPUs, as parts of the profile's
    `entries` (layers x experts); 96 KiB of KV and 6.6 GFLOP a token; KV goes over 40 GB/s."""
    bandwidth = 0.7 * memory
    return Linear(
        decode=Decode(
            base=0.003,
            per_request=1e-5,
            per_kv_token=98_304 / bandwidth,
            per_distinct=58e9 / ranks / entries / bandwidth,
        ),
        prefill=Prefill(base=0.005, per_token=6.6e9 / (0.4 * flops)),
        transfer=Transfer(base=0.003, per_token=98_304 / 40e9),
    )


BASE = Kind(name="", share=1, prompt=(300.0, 1.0), answer=(350.0, 0.8))
MI300X = (5.3e12, 1300e12)
"""Bytes and operations a second."""
