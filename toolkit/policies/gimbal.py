"""Gimbal's engine selection: KV pressure first, then load, then the user's last engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from toolkit.policies.base import Decision, Needs, Policy, RequestView, WorkerView, healthy_indices
from toolkit.policies.support.gimbal_reading import Reading, read
from toolkit.policies.support.rotation import Rotation
from toolkit.policies.support.user_map import UserMap

ROUNDING = 1e-9
"""0.95 - 0.85 is less than 0.10 in floating point. Pools hold less than 1e9 tokens."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """`kv`: the KV usage from which an engine is overused, in (0, 1]. `diff`: the difference of
    usages that counts as imbalance, in [0, 1]. `load`: tokens by which running loads may differ, at
    least 0: about one large request (in BurstGPT 97.6 % have no more than 3000). ValueError: else.
    """

    kv: float = 0.9
    diff: float = 0.10
    load: float = 3000.0

    def __post_init__(self) -> None:
        if not 0 < self.kv <= 1:
            raise ValueError(f"theta_kv = {self.kv:g} must lie in (0, 1]")
        if not 0 <= self.diff <= 1:
            raise ValueError(f"theta_diff = {self.diff:g} must lie in [0, 1]")
        if not self.load >= 0:
            raise ValueError(f"theta_load = {self.load:g} must be at least 0 tokens")

    @classmethod
    def parse(cls, text: str) -> Thresholds:
        """From `KV`, `KV:DIFF` or `KV:DIFF:LOAD`, the rest by default. ValueError: else."""
        parts = text.split(":")
        names = [item.name for item in fields(cls)]
        if len(parts) > len(names):
            raise ValueError(f"thresholds {text!r} must be KV[:DIFF[:LOAD]]")
        values = {}
        for name, part in zip(names, parts, strict=False):
            try:
                values[name] = float(part)
            except ValueError as error:
                raise ValueError(f"theta_{name} = {part} must be a number") from error
        return cls(**values)


@dataclass
class GimbalCounters:
    """`decisions` counts by branch (see `GimbalPolicy`), one for each choice; `readings` by what
    was wrong with them, one for each healthy worker at each choice."""

    decisions: Counter[str] = field(default_factory=Counter)
    readings: Counter[str] = field(default_factory=Counter)


class GimbalPolicy(Policy):
    """The emptiest KV pool once one is overused, else the engine that has the user's prefix.

    Formula, with usage_i = (used + sent) / total KV tokens and load_i = used + waiting + sent
    tokens over healthy engines (lines of Algorithm 1; the branch's name in `counters.decisions`):

        no load is known                                  -> rotation           no_readings  (1)
        max usage >= kv:
            max usage - min usage >= diff                 -> argmin usage       least_kv     (7)
            else max load - min load > load               -> argmin load        least_load   (12)
            else                                          -> rotation           level        (1)
        else the request has no user                      -> rotation           anonymous    (1)
             nothing, or nothing fresh, is known of it    -> rotation           new_user     (1)
             its engine is down or without a load         -> rotation           home_lost    (1)
             else                                         -> the user's engine  affinity     (17)

    and in each case the user's engine from now on is the chosen one (21). A user's prompts share
    their beginning, so affinity hits the prefix cache; but it makes imbalance worse, hence only
    while no pool is overused: a user is never kept on an engine at kv or above. There memory
    decides, as an engine without room retracts requests; where pools are alike the tokens do, which
    set the wait where requests differ in size.

    *Ours*: `sent` (see `Reading`); rotation is least recently chosen first, fair when engines come
    and go, and breaks the ties of both argmins; affinity expires (the paper gives no time: 300 s,
    as prompt caches commonly hold for minutes) and is bounded (least recently seen out first).

    Degraded: an engine whose load is missing or impossible counts as loaded, not as empty: it is
    as full as the fullest and is not taken for its emptiness, nor because a user was there
    (it has just restarted, or is silent). It stays in the rotation, else an engine that never
    publishes would get nothing. One that reports more in use than it has is full. All are counted
    in `counters.readings`. Without `now` in the requests affinity does not expire. A restarted
    engine keeps its users: they miss once, as they would anywhere.
    Knobs: `thresholds` (0.9, 0.10, 3000; `gimbal@KV[:DIFF[:LOAD]]`), `expiry` (300, the unit of
    `now`), `capacity` (users remembered, 100,000).
    Source: Gimbal, "Multi-Layer Scheduling for MoE-Based LLM Reasoning", III B, Algorithm 1; the
    thresholds are those of its evaluation. As published it is `gimbal@paper`.
    """

    name = "gimbal"
    needs = Needs(user=True)

    def __init__(
        self,
        seed: int = 0,
        thresholds: Thresholds | None = None,
        expiry: float = 300.0,
        capacity: int = 100_000,
    ) -> None:
        self.thresholds = thresholds or Thresholds()
        self.users = UserMap(capacity, expiry)
        self.counters = GimbalCounters()
        self._rotation = Rotation(seed)

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        healthy = healthy_indices(workers)
        if not healthy:
            return None
        branch, among = self._branch(workers, healthy, request.user, request.now)
        index = self._rotation.take(workers, among)
        self.counters.decisions[branch] += 1
        if request.user:
            self.users.store(request.user, workers[index].key, request.now)
        return Decision(index, f"{branch}, one of {len(among)}")

    def _branch(
        self, workers: Sequence[WorkerView], healthy: list[int], user: str | None, now: float
    ) -> tuple[str, list[int]]:
        """The branch, and the indices that are equally good by it."""
        readings = self._readings(workers, healthy)
        if not readings:
            return "no_readings", healthy
        usage = {i: reading.usage for i, reading in readings.items()}
        if _at_least(max(usage.values()), self.thresholds.kv):
            if _at_least(_spread(usage), self.thresholds.diff):
                return "least_kv", _least(usage)
            tokens = {i: reading.tokens for i, reading in readings.items()}
            if _spread(tokens) > self.thresholds.load:
                return "least_load", _least(tokens)
            return "level", healthy
        if not user:
            return "anonymous", healthy
        home = self.users.find(user, now)
        if home is None:
            return "new_user", healthy
        at = [i for i in readings if workers[i].key == home]
        return ("affinity", at) if at else ("home_lost", healthy)

    def _readings(self, workers: Sequence[WorkerView], healthy: list[int]) -> dict[int, Reading]:
        """By index, of the workers that have one that can be."""
        readings = {}
        for i in healthy:
            reading, wrong = read(workers[i].load)
            if wrong:
                self.counters.readings[wrong] += 1
            if reading is not None:
                readings[i] = reading
        return readings


def _at_least(value: float, threshold: float) -> bool:
    return value >= threshold - ROUNDING


def _spread(values: dict[int, float]) -> float:
    return max(values.values()) - min(values.values())


def _least(values: dict[int, float]) -> list[int]:
    least = min(values.values())
    return [i for i, value in values.items() if value == least]
