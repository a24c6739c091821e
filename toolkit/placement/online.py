"""When to move experts, and where to: placements that follow the traffic.

Every `every` decode steps, or when the traffic drifts, a new placement is fitted to the requests
that were seen since. What it would gain is told by one that is fitted to every other request and
judged by the rest: on each of `BLOCKS` parts the relative time of a layer (`StepCost`) under the
present map against that under the new one. What counts is the mean less three standard
errors, so that noise of a small sample moves nothing; and the seconds that it saves until the next
decision must exceed those that the move takes.

    saved_s = steps * step_s * expert_share * gain        gain: share of an expert layer's time
    cost_s  = sent * expert_bytes / bytes_per_s + orders * order_s

Drift: the busiest GPU's load over the mean, on the last requests, lies `drift` above what it was
when the present map was judged. Then only what came since is fitted to.

`gimbal@paper` is Gimbal's Algorithm 3 whole (lines 5 to 10): every tau = 3000 steps the experts are
placed anew by all that was seen since, and moved whatever it costs; it knows no replicas.

Pure: no clock, no socket. Tokens come as whole requests, each [tokens, layers, top_k].
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolkit.placement.base import Placement
from toolkit.placement.gimbal import gimbal, gimbal_knobs
from toolkit.placement.judge import StepCost, judge
from toolkit.placement.relocation import aligned, arranged, copies
from toolkit.placement.topology import Topology
from toolkit.placement.traffic import count

Ids = NDArray[np.integer]
Cause = Literal["steps", "drift", "asked"]

BLOCKS = 8
"""Parts of the judging requests."""
LATEST = 2048
"""Tokens over which drift is looked for."""
PAPER = "gimbal@paper"


@dataclass(frozen=True, slots=True)
class RelocationSettings:
    """How eager to move.

    kind: a placement (`toolkit.placement.check_placement`), or `gimbal@paper`, with its anchor and
    threshold `gimbal@paper:ANCHOR:SIGMAS`. every: decode steps
    between two decisions. tokens: the least to decide on. most_tokens: the newest that are kept.
    drift: how much further from balance than when the map was judged. expert_share: of a decode
    step's time, what expert layers take: an assumption unless it was measured. least: a gain of an
    expert layer's time below it is left.
    """

    kind: str = "joint"
    every: int = 3000
    tokens: int = 8192
    most_tokens: int = 65536
    drift: float = 0.05
    expert_share: float = 0.5
    least: float = 0.01

    @property
    def paper(self) -> bool:
        """Whether it is Gimbal's Algorithm 3 whole."""
        return self.kind.partition(":")[0] == PAPER

    @property
    def gimbal_knobs(self) -> tuple[int, float]:
        """Its anchor GPU and threshold."""
        return gimbal_knobs(self.kind.partition(":")[2])

    def __post_init__(self) -> None:
        from toolkit.placement import check_placement

        if self.paper:
            self.gimbal_knobs  # noqa: B018 (a wrong one raises)
        else:
            check_placement(self.kind)
        if self.every < 1 or not 0 < self.tokens <= self.most_tokens:
            raise ValueError(
                f"every {self.every} steps, {self.tokens} to {self.most_tokens} tokens: give at "
                "least one step, and tokens up to most_tokens"
            )
        if not (self.drift > 0 and 0 < self.expert_share <= 1):
            raise ValueError(
                f"drift {self.drift} must be above 0, expert_share {self.expert_share} in (0, 1]"
            )


@dataclass(frozen=True, slots=True)
class Cost:
    """What moving takes here: bytes of one expert of one layer, bytes/s between GPUs, the seconds
    of an order besides, and how many slots one order writes."""

    expert_bytes: float
    bytes_per_s: float
    order_s: float
    slots: int

    def seconds(self, sent: int, written: int) -> float:
        """For so many experts that leave their GPU, of so many that are written."""
        orders = math.ceil(written / self.slots)
        return sent * self.expert_bytes / self.bytes_per_s + orders * self.order_s


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """What to do, and the figures that say so. `target` is arranged for the present map.

    balance, crossing: busiest GPU over mean, share of hops across nodes, on the judging requests,
    under the present map and the target. gain: share of an expert layer's time, its lower bound.
    """

    move: bool
    cause: Cause
    why: str
    target: Placement | None = None
    balance: tuple[float, float] = (0.0, 0.0)
    crossing: tuple[float, float] = (0.0, 0.0)
    gain: float = 0.0
    saved_s: float = 0.0
    cost_s: float = 0.0
    sent: int = 0
    written: int = 0


@dataclass
class Online:
    """Of one server. `observe` what it runs, and ask `due` and then `decide` now and then."""

    topology: Topology
    settings: RelocationSettings = field(default_factory=RelocationSettings)
    step: StepCost = field(default_factory=StepCost)
    seed: int = 0

    def __post_init__(self) -> None:
        self._requests: deque[Ids] = deque()
        self._tokens = 0
        self._steps = 0
        self._fresh = 0
        """Tokens since drift was looked for."""
        self._drifts = False
        self._expected: float | None = None

    @property
    def tokens(self) -> int:
        """Seen since the last decision, as far as they are kept."""
        return self._tokens

    def observe(self, requests: list[Ids], steps: int) -> None:
        """What finished, and how many decode steps were taken meanwhile."""
        self._steps += steps
        for ids in requests:
            self._requests.append(ids)
            self._tokens += len(ids)
            self._fresh += len(ids)
        while self._tokens > self.settings.most_tokens and len(self._requests) > 2:
            self._tokens -= len(self._requests.popleft())

    def due(self, current: Placement) -> Cause | None:
        """Why a decision is to be made now; None where none is."""
        if self._fresh >= LATEST // 2 and not self._drifts:
            self._fresh = 0
            self._drifts = self._drifted(current)
        if self._tokens < self.settings.tokens:
            return None
        if self._drifts:
            return "drift"
        return "steps" if self._steps >= self.settings.every else None

    def _drifted(self, current: Placement) -> bool:
        """Whether the last requests lie elsewhere. Then those before them are forgotten."""
        if self._expected is None or self.settings.paper:
            return False
        latest: deque[Ids] = deque()
        tokens = 0
        for ids in reversed(self._requests):
            latest.appendleft(ids)
            tokens += len(ids)
            if tokens >= LATEST and len(latest) >= BLOCKS:
                break
        if tokens < LATEST or len(latest) < BLOCKS:
            return False
        # In parts, as in `decide`: a small sample's busiest GPU is busier than a large one's.
        found = _balances(list(latest), current, self.topology)
        low = float(found.mean() - 2 * found.std(ddof=1) / math.sqrt(len(found)))
        if low <= self._expected * (1 + self.settings.drift):
            return False
        self._requests, self._tokens = latest, tokens
        return True

    def decide(
        self, current: Placement, step_s: float, cost: Cost, cause: Cause
    ) -> PlacementDecision:
        """Whether to move, and where to. Begins anew: what was seen is not looked at again.

        step_s: seconds of a decode step. Raises ValueError where there are too few requests, or
        the placement has another size than the tokens.
        """
        settings = self.settings
        requests = list(self._requests)
        if len(requests) < 2 * BLOCKS:
            raise ValueError(
                f"{len(requests)} requests are too few to place experts by: wait for {2 * BLOCKS}"
            )
        self._requests.clear()
        self._tokens = self._steps = self._fresh = 0
        self._drifts = False
        target = self._place(requests, current)
        paper = settings.paper
        tried = target if paper else self._place(requests[::2], current)
        changed = [
            copies(before, after, self.topology)
            for before, after in zip(
                current.physical_to_logical.tolist(),
                target.physical_to_logical.tolist(),
                strict=True,
            )
        ]
        sent, written = sum(c.sent for c in changed), sum(c.written for c in changed)
        judging = requests if paper else requests[1::2]
        parts = [np.concatenate(judging[part::BLOCKS]) for part in range(BLOCKS)]
        before = [judge(current, self.topology, ids, step=self.step) for ids in parts]
        after = [judge(tried, self.topology, ids, step=self.step) for ids in parts]
        gains = np.array(
            [1 - n.step.mean() / b.step.mean() for b, n in zip(before, after, strict=True)]
        )
        gain = float(gains.mean() - 3 * gains.std(ddof=1) / math.sqrt(BLOCKS))
        saved_s = settings.every * step_s * settings.expert_share * gain
        cost_s = cost.seconds(sent, written)
        move = bool(written) and ((gain >= settings.least and saved_s > cost_s) or paper)
        self._expected = _mean([each.balance for each in (after if move else before)])
        if not written:
            why = "the experts lie as they should"
        elif move and paper:
            why = "every tau steps, as published"
        elif gain <= 0:
            why = f"it may gain nothing: {gain:.2%} of an expert layer's time at worst"
        elif gain < settings.least:
            why = (
                f"it would gain {gain:.2%} of an expert layer's time, {settings.least:.2%} is least"
            )
        else:
            why = (
                f"{saved_s:.3g} s saved in {settings.every} steps "
                f"{'exceed' if move else 'do not exceed'} {cost_s:.3g} s to move {written} slots"
            )
        return PlacementDecision(
            move,
            cause,
            why,
            target,
            (_mean([each.balance for each in before]), _mean([each.balance for each in after])),
            (
                _mean([each.cross_node for each in before]),
                _mean([each.cross_node for each in after]),
            ),
            gain,
            saved_s,
            cost_s,
            sent,
            written,
        )

    def _place(self, requests: list[Ids], current: Placement) -> Placement:
        from toolkit.placement import place

        traffic = count(np.concatenate(requests), current.experts)
        if self.settings.paper:
            # The anchor is fixed before the start, so its GPUs have no other names.
            anchor, sigmas = self.settings.gimbal_knobs
            placed = gimbal(traffic, self.topology, current.redundant, anchor=anchor, sigmas=sigmas)
            return arranged(current, placed)
        target = place(self.settings.kind, traffic, self.topology, current.redundant, self.seed)
        return arranged(current, aligned(current, target, self.topology))


def _balances(requests: list[Ids], placement: Placement, topology: Topology) -> NDArray[np.float64]:
    """Busiest GPU over mean, in each of up to BLOCKS parts of the requests."""
    parts = [requests[part::BLOCKS] for part in range(BLOCKS)]
    return np.array(
        [judge(placement, topology, np.concatenate(part)).balance.mean() for part in parts if part]
    )


def _mean(values: list[NDArray[np.float64]]) -> float:
    found = [float(each.mean()) for each in values if len(each)]
    return sum(found) / len(found) if found else 0.0
