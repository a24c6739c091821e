"""From samples to the numbers of a run, under the names that `sglang.benchmark.serving` uses.

SGLang's own `calculate_metrics` takes the same samples, but importing its module costs 5 s of CPU,
brings torch and, on CPU, needs the shims of `patches` and the package `datasets`, which the lean
CPU set does not hold: no price for fifty lines of arithmetic on the two cores that the workers
run on. `tests/unit/bench/test_sglang_metrics.py` holds the two together: every key below that
SGLang has too must have SGLang's value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.bench.client import Sample

LATENCIES = ("ttft", "ttst", "tpot", "itl", "longest_gap", "e2e_latency")


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objective of a request, milliseconds. None: not looked at."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def met(self, sample: Sample) -> bool:
        """Whether a successful request kept to it. One token has no TPOT: it passes."""
        if self.ttft_ms is not None and sample.ttft * 1000 > self.ttft_ms:
            return False
        spent = tpot(sample)
        return self.tpot_ms is None or spent is None or spent * 1000 <= self.tpot_ms


def tpot(sample: Sample) -> float | None:
    """Seconds per output token after the first; None for a single token."""
    if sample.output_len < 2:
        return None
    return (sample.latency - sample.ttft) / (sample.output_len - 1)


def latencies(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """The latency series of the successful samples, in milliseconds. Time to the second token and
    longest gap are ours: a first token that comes early must not hide that the next one does not.
    """
    good = [sample for sample in samples if sample.success]
    return {
        "ttft": [sample.ttft * 1000 for sample in good],
        "ttst": [sample.ttst * 1000 for sample in good if sample.ttst],
        "tpot": [value * 1000 for value in map(tpot, good) if value is not None],
        "itl": [gap * 1000 for sample in good for gap in sample.itl],
        "longest_gap": [sample.longest_gap * 1000 for sample in good if sample.longest_gap],
        "e2e_latency": [sample.latency * 1000 for sample in good],
    }


def summarise(
    samples: Sequence[Sample], duration_s: float, slo: Slo | None = None
) -> dict[str, Any]:
    """One run as a flat dictionary: counts, tokens, throughputs (per s) and latencies (ms).

    `goodput` is successful requests within the SLO per second, `goodput_fraction` their share of
    all requests, the failed ones included. Both are None without an SLO. `cache_hit_rate_pct` is
    the prompt tokens' share that was in a prefix cache; None where the server does not say.
    """
    import numpy as np

    good = [sample for sample in samples if sample.success]
    given = sum(sample.prompt_len for sample in good)
    made = sum(sample.output_len for sample in good)
    result: dict[str, float | int | None] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(samples) - len(good),
        "total_input_tokens": given,
        "total_output_tokens": made,
        "total_cached_tokens": sum(sample.cached_tokens for sample in good),
        "cache_hit_rate_pct": _hit_rate(good),
        "request_throughput": len(good) / duration_s,
        "input_throughput": given / duration_s,
        "output_throughput": made / duration_s,
        "total_throughput": (given + made) / duration_s,
        "concurrency": sum(sample.latency for sample in good) / duration_s,
    }
    for name, series in latencies(samples).items():
        values = np.asarray(series or [0.0])
        result[f"mean_{name}_ms"] = float(values.mean())
        result[f"median_{name}_ms"] = float(np.median(values))
        result[f"std_{name}_ms"] = float(values.std())
        for percent in (90, 95, 99):
            result[f"p{percent}_{name}_ms"] = float(np.percentile(values, percent))
    gaps = [gap for sample in good for gap in sample.itl]
    result["max_itl_ms"] = max(gaps, default=0.0) * 1000
    result["goodput"] = result["goodput_fraction"] = None
    if slo is not None and (slo.ttft_ms is not None or slo.tpot_ms is not None):
        kept = sum(slo.met(sample) for sample in good)
        result["goodput"] = kept / duration_s
        result["goodput_fraction"] = kept / len(samples) if samples else 0.0
    return result


def _hit_rate(good: Sequence[Sample]) -> float | None:
    told = [sample for sample in good if sample.cache_told and sample.prompt_len]
    if not told:
        return None
    given = sum(sample.prompt_len for sample in told)
    return 100.0 * sum(sample.cached_tokens for sample in told) / given
