"""Least load in tokens (SMG's formula)."""

from collections.abc import Sequence

from toolkit.policies.base import Decision, Policy, RequestView, WorkerView, healthy_indices
from toolkit.policies.support.rotation import Rotation


class LeastTokensPolicy(Policy):
    """The worker with the least estimated time to drain plus KV pressure.

    Formula, in seconds, lower is better:

        score_i = (waiting_tokens_i + sent_tokens_i) / throughput + w * k_i / (1 - k_i)

    - `waiting_tokens`: published token work of the waiting queue. Tokens, not requests, set the
      wait when prompt sizes are skewed.
    - `sent_tokens`: token work posted after that reading, so that a whole interval's arrivals do
      not land on one worker.
    - `/ throughput` (tokens/s) turns work into time; one for all, as workers do not report theirs.
    - `k / (1 - k)`, k = used / total KV tokens clamped to [0, 0.999]: the M/M/1 occupancy barrier,
      which diverges at a full pool, where preemption and recompute begin.

    Degraded: a worker without a reading while others have one -> requests in flight *
    `mean_prefill_tokens` / throughput; nobody has one -> join the shortest queue of this router's
    own requests. Ties: least recently chosen. Knobs: `kv_pressure_weight` w (s), `throughput`
    (tokens/s), `mean_prefill_tokens`. Source: SMG (github.com/lightseekorg/smg),
    model_gateway/src/policies/least_load.rs, `LeastLoadPolicy`, defaults included. There the
    reading ages out by a clock; here the router drops stale readings before the policy sees them.
    """

    name = "least_tokens"

    def __init__(
        self,
        seed: int = 0,
        kv_pressure_weight: float = 0.15,
        throughput: float = 2000.0,
        mean_prefill_tokens: int = 1024,
    ) -> None:
        self._rotation = Rotation(seed)
        self._weight = kv_pressure_weight
        self._throughput = throughput
        self._mean_prefill_tokens = mean_prefill_tokens

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        healthy = healthy_indices(workers)
        if not healthy:
            return None
        dark = all(workers[i].load is None for i in healthy)
        scores = {i: self._score(workers[i], dark) for i in healthy}
        best = min(scores.values())
        ties = [i for i in healthy if scores[i] == best]
        return Decision(self._rotation.take(workers, ties), f"score {best:.4f} s")

    def _score(self, worker: WorkerView, dark: bool) -> float:
        if dark:
            return float(worker.inflight)
        load = worker.load
        if load is None:
            return worker.inflight * self._mean_prefill_tokens / self._throughput
        usage = min(max(load.usage, 0.0), 0.999)
        work = load.waiting_tokens + load.sent_tokens
        return work / self._throughput + self._weight * usage / (1 - usage)
