"""What Gimbal takes from a worker's load, and which loads cannot be."""

from dataclasses import dataclass

from toolkit.policies.support.readings import HUGE
from toolkit.policies.views import Load


@dataclass(frozen=True, slots=True)
class Reading:
    """`usage` is KVusage: KV tokens in use over the pool's size; `tokens` is RunningLoad: the
    tokens that run and wait. Both contain what was sent since the load was published (*ours*), or
    every request between two readings would find the same engine empty; so `usage` may exceed 1."""

    usage: float
    tokens: float


def read(load: Load | None) -> tuple[Reading | None, str]:
    """The reading, and what is wrong with the load ("" when nothing is).

    None where it says nothing: missing, negative, not a number (NaN, or larger than any), or
    without the pool's size, which leaves the usage unknown (`Load.usage` is 0 then, which would be
    an empty engine). More in use than there is counts as full: accounting that is a little off is
    so when the pool is full.
    """
    if load is None:
        return None, "missing"
    values = (load.used_tokens, load.waiting_tokens, load.sent_tokens, load.total_tokens)
    if any(value < 0 for value in values):
        return None, "negative"
    if not all(value < HUGE for value in values):  # so written that NaN fails too
        return None, "not a number"
    used, waiting, sent, total = values
    if total == 0:
        return None, "no capacity"
    wrong = "over capacity" if used > total else ""
    used = min(used, total)
    return Reading((used + sent) / total, used + waiting + sent), wrong
