"""What would be needed where no setting meets the objectives: less traffic, or more workers."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.plan.candidate import Candidate
from toolkit.plan.errors import Spent
from toolkit.plan.objective import PlanSlo, share
from toolkit.plan.search import Search
from toolkit.plan.split import Split, nearest, split_of, splits, with_split
from toolkit.simulate.recorder import URGENT

SLOWEST = 1 / 64
"""Of the traffic's rate that is looked at at least."""
CLOSE = 0.03
"""Between two rates that are told apart."""
LARGEST = 8
"""Times the workers that are looked at at most."""
LIMITS = (
    ("TTFT", "ttft", "ttft"),
    ("TPOT", "tpot", "tpot"),
    ("TTFT of latency-sensitive requests", "urgent_ttft", f"{URGENT}.ttft"),
)
"""In words, in `PlanSlo`, in figures."""


@dataclass(frozen=True)
class Bound:
    """What one request alone takes, in seconds (medians), where that is too long already; `share`:
    of such requests within the limit; `prompt`: tokens of the median one. `what`: TTFT, TPOT, or
    TTFT of latency-sensitive requests."""

    what: str
    seconds: float
    limit: float
    share: float
    prompt: int


@dataclass(frozen=True)
class PlanNeeds:
    """`rate`: the share of the traffic's rate, in a closed loop of the number in flight, that the
    best plan serves within the objectives, 0 where none above `SLOWEST` is; `workers`: the fewest
    replicas that serve all of it, and `split` theirs. None: not found, within `LARGEST` times the
    workers or the simulations (`spent`). `bounds`: why no rate and no number helps, where that is
    so."""

    rate: float | None = None
    workers: int | None = None
    split: Split | None = None
    bounds: tuple[Bound, ...] = ()
    spent: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "workers": self.workers,
            "split": None if self.split is None else list(self.split),
            "bounds": [bound.__dict__ for bound in self.bounds],
            "spent": self.spent,
        }


def needs(search: Search, plan: Candidate, seeds: Sequence[int]) -> PlanNeeds:
    """What the best plan lacks. Every number was simulated on all requests of the seeds."""
    found = bounds(search, plan)
    if found:
        return PlanNeeds(bounds=found)
    rate, spent = _rate(search, plan, seeds)
    try:
        split = _workers(search, plan, seeds)
    except Spent:
        split, spent = None, True
    return PlanNeeds(rate, None if split is None else sum(split), split, spent=spent)


def bounds(search: Search, plan: Candidate) -> tuple[Bound, ...]:
    """The limits that too few requests keep even one at a time; none where both can be kept."""
    trials, slo = search.trials, search.trials.slo
    found = []
    for what, name, figure in LIMITS:
        limit = getattr(slo, name)
        if not math.isfinite(limit):
            continue
        only = PlanSlo(**{name: limit, "attainment": slo.attainment})
        figures = trials.alone(plan, only)
        if f"{figure}_p50" in figures and not only.met([figures]):
            kept = share([figures], only)
            found.append(Bound(what, figures[f"{figure}_p50"], limit, kept, _prompt(search, name)))
    return tuple(found)


def _prompt(search: Search, limit: str) -> int:
    """Of the median request that the limit is about."""
    every = search.trials.requests(0)
    return round(statistics.median(r.prompt for r in every if limit != "urgent_ttft" or r.urgent))


def _rate(search: Search, plan: Candidate, seeds: Sequence[int]) -> tuple[float | None, bool]:
    """By bisection of the logarithm; and whether simulations ran out on the way."""
    trials = search.trials

    def serves(speed: float) -> bool:
        return trials.slo.met(trials.all(plan, seeds, speed))

    low, high = 0.0, 1.0
    try:
        speed = 0.5
        while speed >= SLOWEST and not serves(speed):
            high, speed = speed, speed / 2
        if speed < SLOWEST:
            return 0.0, False
        low = speed
        while high / low > 1 + CLOSE:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if serves(middle) else (low, middle)
    except Spent:
        return low or None, True
    return low, False


def _workers(search: Search, plan: Candidate, seeds: Sequence[int]) -> Split | None:
    """The fewest that serve it, by doubling and then bisection; None within `LARGEST` times."""
    now = plan.workers
    known: dict[int, Split | None] = {now: None}

    def serves(count: int) -> bool:
        if count not in known:
            known[count] = _serving(search, plan, count, seeds)
        return known[count] is not None

    low, high = now, _first(serves, now, 2 * now, LARGEST * now)
    if high is None:
        return None
    low = max(now, high // 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if serves(middle) else (middle, high)
    return known[high]


def _first(serves: Callable[[int], bool], now: int, count: int, most: int) -> int | None:
    while count <= most:
        if serves(count):
            return count
        count *= 2
    return None


def _serving(search: Search, plan: Candidate, count: int, seeds: Sequence[int]) -> Split | None:
    """The split of so many workers that serves it, if one does: the best one on the first requests,
    then those beside it and the one like the plan's."""
    document = plan.document
    if plan.deployment.prefill.hosts or plan.deployment.decode.hosts:
        for role in ("prefill", "decode"):
            document = {**document, role: {**document[role]}}
            document[role].pop("hosts", None)
    bare = search.candidate(document)
    assert bare is not None
    all_ = splits(bare.deployment, count)
    best = split_of(search.split(document, all_))
    at = all_.index(best)
    tried = [best, *all_[max(0, at - 1) : at + 2], nearest(all_, split_of(plan.document))]
    for split in dict.fromkeys(tried):
        candidate = search.candidate(with_split(document, split))
        if candidate is not None and search.trials.slo.met(search.trials.all(candidate, seeds)):
            return split
    return None
