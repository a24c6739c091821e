"""What decode workers did while a workload played, by their own step logs.

The client's TPOT contains the network, the router, detokenizers and, where busy workers share
cores, the waiting for one. Inside the worker a step has a wall time and, on CPU, the CPU time of
the thread that ran it: what it would take on a core of its own (`patches.steps.step_log`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toolkit.bench.balance import balance

if TYPE_CHECKING:
    from numpy.typing import NDArray

SERIES = ("worker_tpot", "worker_tpot_wall", "step", "step_wall")
"""Latencies, ms. Without `_wall`: on a core (or GPU) of its own, CPU time on CPU and wall time
elsewhere. `worker_tpot` is that of `patches.steps.request_times`, one value a request; `step` has
one value a decode step."""
SINGLE = (
    *("decode_steps", "mean_batch", "mean_kv_tokens", "distinct_experts", "window_throughput"),
    "step_tokens",
)
"""`step_tokens`: that a step gives a request, more than 1 where drafts are accepted.
`window_throughput`: output tokens a second in the window. A closed
loop's `output_throughput` has its filling and running dry, too, and a policy that lets long
requests wait runs dry for longer."""


@dataclass(frozen=True)
class RankSteps:
    """One decode worker (server, DP rank): float64 `steps` [M, F + layers], decode steps only,
    and `finished` [R, C], with the caller's monotonic clock as `end`."""

    name: str
    steps: NDArray[Any]
    finished: NDArray[Any]


@dataclass(frozen=True)
class DecodeSteps:
    """The step rows of every decode worker. `columns` name F, `finished_columns` name C.

    `own_clock` is "cpu" when every worker computes on CPU, else "wall". `window` and `uncut` are of
    `between`: from when to when, and every rank with all of its steps.
    """

    ranks: tuple[RankSteps, ...]
    columns: tuple[str, ...]
    finished_columns: tuple[str, ...]
    own_clock: str
    window: tuple[float, float] | None = None
    uncut: tuple[RankSteps, ...] = ()

    def between(self, since: float, until: float) -> DecodeSteps:
        """What ended in [since, until), seconds of `time.monotonic`."""

        def kept(rows: NDArray[Any], columns: tuple[str, ...]) -> NDArray[Any]:
            end = rows[:, columns.index("end")] if columns else rows[:, :0].sum(axis=1)
            return rows[(end >= since) & (end < until)]

        ranks = tuple(
            replace(
                rank,
                steps=kept(rank.steps, self.columns),
                finished=kept(rank.finished, self.finished_columns),
            )
            for rank in self.ranks
        )
        return replace(self, ranks=ranks, window=(since, until), uncut=self.uncut or self.ranks)

    def metrics(self) -> dict[str, Any]:
        """All workers together, flat: SINGLE, what `balance` says of two or more, and mean,
        median, p90, p99 of SERIES as `median_worker_tpot_ms`. Every step counts once, whatever its
        batch. What was not measured (no request with a TPOT, experts not captured) has no key.
        """
        import numpy as np

        steps = self._joined("steps")
        found: dict[str, Any] = {"worker_clock": self.own_clock, "decode_steps": len(steps)}
        if len(steps):
            requests, made = self._column(steps, "requests"), self._column(steps, "new_tokens")
            found["mean_batch"] = float(requests.mean())
            found["step_tokens"] = float(made.sum() / requests.sum())
            if self.window is not None:
                since, until = self.window
                found["window_throughput"] = float(made.sum()) / (until - since)
            found["mean_kv_tokens"] = float(self._column(steps, "kv_tokens").mean())
            distinct = self.distinct(steps)
            if np.isfinite(distinct).any():
                found["distinct_experts"] = float(np.nanmean(distinct))
            found |= self.balance()
        for name, values in self.series().items():
            if not len(values):
                continue
            found[f"mean_{name}_ms"] = float(values.mean())
            found[f"median_{name}_ms"] = float(np.median(values))
            for percent in (90, 99):
                found[f"p{percent}_{name}_ms"] = float(np.percentile(values, percent))
        return found

    def balance(self) -> dict[str, float]:
        """See `toolkit.bench.balance`: in the window, if there is one, also steps that only end
        after it count for their part."""
        since, until = self.window or (None, None)
        steps = [rank.steps for rank in self.uncut or self.ranks]
        return balance(steps, self.columns, since, until, self.own_clock)

    def series(self) -> dict[str, NDArray[Any]]:
        """SERIES of all workers together, ms."""
        steps, finished = self._joined("steps"), self._joined("finished")
        own = "cpu_seconds" if self.own_clock == "cpu" else "seconds"
        tokens = self._finished_column(finished, "timed_tokens")
        timed, tokens = finished[tokens > 0], tokens[tokens > 0]
        return {
            "worker_tpot": 1e3 * self._finished_column(timed, own) / tokens,
            "worker_tpot_wall": 1e3 * self._finished_column(timed, "seconds") / tokens,
            "step": 1e3 * self._column(steps, own),
            "step_wall": 1e3 * self._column(steps, "seconds"),
        }

    def by_worker(self) -> dict[str, dict[str, Any]]:
        """`metrics` of each worker alone, and how many requests it finished."""
        return {
            rank.name: {"finished": len(rank.finished)} | self._alone(rank).metrics()
            for rank in self.ranks
        }

    def _alone(self, rank: RankSteps) -> DecodeSteps:
        return replace(self, ranks=(rank,), window=None, uncut=())

    def by_batch(self) -> dict[int, dict[str, float]]:
        """Steps of equal batch size together: how many, distinct experts, median step ms. Policies
        that make other batches can be compared here at the same ones."""
        import numpy as np

        steps = self._joined("steps")
        batch, distinct = self._column(steps, "requests"), self.distinct(steps)
        took = self.series()["step"]
        found: dict[int, dict[str, float]] = {}
        for size in np.unique(batch):
            at = batch == size
            found[int(size)] = {"steps": int(at.sum()), "step_ms": float(np.median(took[at]))}
            if np.isfinite(distinct[at]).any():
                found[int(size)]["distinct_experts"] = float(np.nanmean(distinct[at]))
        return found

    def distinct(self, steps: NDArray[Any]) -> NDArray[Any]:
        """Distinct experts of each step, mean over MoE layers; NaN where none were captured.

        A layer that shows none in any step of the run is dense.
        """
        import numpy as np

        experts = steps[:, len(self.columns) :]
        moe = self._joined("steps")[:, len(self.columns) :].any(axis=0)
        if not moe.any():
            return np.full(len(steps), np.nan)
        means = experts[:, moe].mean(axis=1)
        return np.where(means > 0, means, np.nan)

    def _joined(self, what: str) -> NDArray[Any]:
        import numpy as np

        blocks = [rows for rank in self.ranks if len(rows := getattr(rank, what))]
        if not blocks:
            columns = self.columns if what == "steps" else self.finished_columns
            return np.zeros((0, len(columns)))
        width = max(rows.shape[1] for rows in blocks)
        # A worker without captured experts has no columns for them.
        return np.concatenate(
            [np.pad(rows, ((0, 0), (0, width - rows.shape[1]))) for rows in blocks]
        )

    def _column(self, steps: NDArray[Any], name: str) -> NDArray[Any]:
        return steps[:, self.columns.index(name)] if len(steps) else steps[:, :0].sum(axis=1)

    def _finished_column(self, rows: NDArray[Any], name: str) -> NDArray[Any]:
        return rows[:, self.finished_columns.index(name)] if len(rows) else rows[:, :0].sum(axis=1)
