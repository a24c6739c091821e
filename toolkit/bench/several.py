"""Several runs of one load: their mean, and what differs from run to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolkit.bench.stats import Ratio, mean_interval
from toolkit.bench.target import Target, flush_caches, get_json, worker_urls

if TYPE_CHECKING:
    import aiohttp

SUMMED = frozenset(
    (
        "duration",
        "completed",
        "failed",
        "total_input_tokens",
        "total_output_tokens",
        "total_cached_tokens",
        "decode_steps",
    )
)
"""Counts of all runs together, not their mean."""


def over_runs(runs: Sequence[dict[str, Any]]) -> dict[str, Ratio]:
    """Each figure that every run has: its mean and Student's 95 % interval of it over the runs.

    Requests of a run share its queues and its machine; only runs are independent.
    """
    found = {}
    for key, first in runs[0].items():
        values = [run.get(key) for run in runs]
        if isinstance(first, bool) or not all(isinstance(each, int | float) for each in values):
            continue
        found[key] = mean_interval([float(each) for each in values])  # type: ignore[arg-type]
    return found


def joined(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One run's metrics from several: means, and sums of SUMMED; of what is no number the first."""
    means = over_runs(runs)
    return {
        key: sum(run[key] for run in runs)
        if key in SUMMED
        else means[key].value
        if key in means
        else first
        for key, first in runs[0].items()
    }


def joined_groups(
    runs: Sequence[dict[str, dict[str, dict[str, Any]]]],
) -> dict[str, dict[str, dict[str, Any]]]:
    """`groups.by_name` of several runs: `joined` of each group that all of them have."""
    found = {}
    for name, members in runs[0].items():
        kept = [key for key in members if all(key in run.get(name, {}) for run in runs)]
        found[name] = {key: joined([run[name][key] for run in runs]) for key in kept}
    return found


def plain(figure: Ratio) -> dict[str, float | int]:
    """For JSON."""
    return {
        "value": figure.value,
        "low": figure.low,
        "high": figure.high,
        "runs": figure.pairs,
    }


async def empty_caches(session: aiohttp.ClientSession, target: Target) -> bool:
    """Empty the prefix caches of all workers, so that a run does not find what the one before it
    left; False where one would not. A plain server is its own worker."""
    state = await get_json(session, target.url + "/workers")
    urls = worker_urls(state, target.url) if (state or {}).get("workers") else [target.url]
    return await flush_caches(session, urls)
