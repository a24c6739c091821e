"""What a worker's batch trace (`patches.steps.batch_trace`) says of requests in a hurry."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wait:
    """Of one request: from when its HTTP process sent it to the worker's scheduler to its first
    forward, and how much of that other requests of its class ran. `slice_s`: the longest slice of
    the best-effort batch that was running when it came; 0 where there was none."""

    waited_s: float
    others_s: float
    slice_s: float

    @property
    def over_s(self) -> float:
        """Beyond those before it and one slice."""
        return self.waited_s - self.others_s - self.slice_s


def since(batches: Sequence[Batch], when: float) -> list[Batch]:
    return [batch for batch in batches if batch["began"] >= when]


def _prefills(batches: Sequence[Batch]) -> list[Batch]:
    return [batch for batch in batches if batch["phase"] == "prefill"]


def _short(batch: Batch, longest: int) -> bool:
    """By length, as the worker of a baseline knows no classes."""
    return all(tokens <= longest for _, _, tokens, *_ in batch["requests"])


def waits(batches: Sequence[Batch], longest: int, layers: int, per_slice: int) -> list[Wait]:
    """Of each request of at most `longest` prompt tokens, in the order of the trace."""
    prefills = sorted(_prefills(batches), key=lambda batch: batch["began"])
    short = [batch for batch in prefills if _short(batch, longest)]
    found, known = [], set()
    for batch in prefills:
        for rid, _, tokens, sent, _ in batch["requests"]:
            if tokens > longest or rid in known or not sent:
                continue
            known.add(rid)
            others = sum(
                max(0.0, min(each["ended"], batch["began"]) - max(each["began"], sent))
                for each in short
                if each is not batch
            )
            slices = [
                _slice_s(each, layers, per_slice)
                for each in prefills
                if not _short(each, longest) and each["began"] <= sent < each["ended"]
            ]
            found.append(Wait(batch["began"] - sent, others, max(slices, default=0.0)))
    return found


def _slice_s(batch: Batch, layers: int, per_slice: int) -> float:
    """The longest time between two looks, where pauses show two of them; else the mean one."""
    paused = sum(ended - began for began, ended, _ in batch["pauses"])
    mean = (batch["ended"] - batch["began"] - paused) * per_slice / layers
    steps = [(batch["began"], batch["began"], 0), *batch["pauses"]]
    seen = [
        (two[0] - one[1]) * per_slice / (two[2] - one[2])
        for one, two in pairwise(steps)
        if two[2] > one[2]
    ]
    return float(max([mean, *seen]))


def spent(batches: Sequence[Batch], longest: int) -> dict[str, float]:
    """Where the prefill worker's seconds went: `long_s` passes with a longer prompt, without their
    pauses; `short_s` passes of others; `stood_s` in pauses, which hold most of the latter."""
    prefills = _prefills(batches)
    stood = sum(end - began for each in prefills for began, end, _ in each["pauses"])
    long, short = (
        sum(each["ended"] - each["began"] for each in prefills if _short(each, longest) is kind)
        for kind in (False, True)
    )
    return {"long_s": long - stood, "short_s": short, "stood_s": stood}


def stopped(batches: Sequence[Batch]) -> dict[str, int]:
    """How often each request was stopped, of those that were."""
    found: dict[str, int] = {}
    for batch in _prefills(batches):
        for rid, *_ in batch["requests"] if batch["pauses"] else ():
            found[rid] = found.get(rid, 0) + len(batch["pauses"])
    return found


def longest_pause_s(batches: Sequence[Batch]) -> float:
    """The longest time for which one batch stood still in all."""
    return max(
        (sum(end - began for began, end, _ in batch["pauses"]) for batch in _prefills(batches)),
        default=0.0,
    )


def lengths_stopped(batches: Sequence[Batch]) -> set[int]:
    """Prompt tokens of the requests that were stopped."""
    return {
        tokens
        for batch in _prefills(batches)
        if batch["pauses"]
        for _, _, tokens, *_ in batch["requests"]
    }
