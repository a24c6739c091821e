"""What policies count of their own decisions, for GET /workers and for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from toolkit.router.collectors import PREFIX

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from toolkit.decide.decider import Decider
    from toolkit.policies.base import Policy
    from toolkit.router.balance import Balance


class Count(NamedTuple):
    """`what` was counted; `kind` of it, where a policy tells several apart."""

    what: str
    kind: str
    value: int


def counts(policy: Policy) -> list[Count]:
    """The fields of the policy's `counters`, if it has any."""
    counters = policy.counters
    if not is_dataclass(counters):
        return []
    found = []
    for field in fields(counters):
        value = getattr(counters, field.name)
        if isinstance(value, Counter):
            found += [Count(field.name, str(kind), count) for kind, count in value.items()]
        elif isinstance(value, int):
            found.append(Count(field.name, "", value))
    return found


def prediction(policy: Policy) -> dict[str, float]:
    """How far the policy's predictor of output lengths was off; empty without one that was judged.

    Steps of a horizon of 80; see `toolkit.policies.predictors.errors`."""
    inflight = policy.inflight
    if inflight is None or not inflight.predictor.errors.judged:
        return {}
    errors = inflight.predictor.errors
    return {
        "judged": errors.judged,
        "error_steps": round(errors.steps, 3),
        "bias_steps": round(errors.bias, 3),
        "skill": round(errors.skill, 4),
        "brier": round(errors.brier, 4),
    }


def describe(policy: Policy) -> dict[str, Any]:
    """For GET /workers; empty for a policy that counts nothing."""
    shown: dict[str, Any] = {}
    for what, kind, value in counts(policy):
        if kind:
            shown.setdefault(what, {})[kind] = value
        else:
            shown[what] = value
    predicted = prediction(policy)
    return shown | ({"prediction": predicted} if predicted else {})


class PolicyCollector(Collector):
    """Decisions by part, the pool, and the balance of decode ranks. Counts begin anew when a policy
    is switched."""

    def __init__(self, decider: Decider, balance: Balance | None) -> None:
        self._decider = decider
        self._balance = balance

    def collect(self) -> Iterator[Metric]:
        yield from self._policies()
        yield from self._pool()
        yield from self._evenness()

    def _policies(self) -> Iterator[Metric]:
        decisions = CounterMetricFamily(
            PREFIX + "policy_counts",
            "What a policy counts of its decisions",
            labels=["side", "policy", "what", "kind"],
        )
        errors = GaugeMetricFamily(
            PREFIX + "prediction",
            "Output lengths: judged requests, mean error and bias in steps of 80, skill, Brier",
            labels=["policy", "what"],
        )
        for side, policy in self._decider.choosing.policies.items():
            for what, kind, value in counts(policy):
                decisions.add_metric([side, policy.name, what, kind], value)
            for what, figure in prediction(policy).items():
                errors.add_metric([policy.name, what], figure)
        yield decisions
        yield errors

    def _pool(self) -> Iterator[Metric]:
        pool = self._decider.pool
        if pool is None:
            return
        yield GaugeMetricFamily(
            PREFIX + "pool_waiting", "Finished prefills without a decode rank", value=len(pool)
        )
        yield CounterMetricFamily(
            PREFIX + "pool_expired",
            "Requests that went to a full rank since they had waited too long",
            value=pool.expired,
        )

    def _evenness(self) -> Iterator[Metric]:
        if self._balance is None:
            return
        sums = self._balance.sums
        yield CounterMetricFamily(
            PREFIX + "kv_samples",
            "Samples of the KV tokens of all decode ranks",
            value=sums.samples,
        )
        tokens = CounterMetricFamily(
            PREFIX + "kv_tokens",
            "Sum over samples of KV tokens of the fullest, the emptiest and the mean decode rank",
            labels=["rank"],
        )
        for rank, value in (("max", sums.largest), ("min", sums.smallest), ("mean", sums.mean)):
            tokens.add_metric([rank], value)
        yield tokens
