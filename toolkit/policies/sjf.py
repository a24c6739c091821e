"""Shortest prefill first, with aging: the order of a waiting queue."""

from collections.abc import Sequence
from math import ceil, inf, isfinite, isnan
from typing import NamedTuple


class WaitingRequest(NamedTuple):
    """One waiting request. `uncached`: prompt tokens that its prefill must compute; `since`: the
    counter when it began to wait; greater `priority` goes first; `id` is its own among the waiting.
    """

    id: str
    uncached: int
    since: int
    priority: int = 0


class ShortestFirst:
    """The order in which waiting requests are to be prefilled.

    Formula: sorted by this key, smaller first, with w = count - since:

        w >= theta_class:  (0,        0, 0, since,            since, id)
        w >= theta_age:    (1, -priority, 0, since,            since, id)
        else:              (1, -priority, 1, max(1, uncached), since, id)

    Priority classes first; inside a class those that have waited theta_age, the oldest first, then
    the shortest prefill. Prefill is bound by computation, so its length says what a request costs
    without a guess at its output, and the shortest first gives the least mean wait; aging is for
    the long ones. `theta_class` (infinite) is ours: who has waited that long outranks its class.

    The same on every rank: each attention-TP rank sorts its own copy of the queue, and batches that
    differ hang the collective. So nothing local is looked at (`count` is a counter that all of them
    share, not a clock), and `id` makes the order total: equal contents give equal orders, however
    the list was arranged. `uncached` must be equal on the ranks too, as radix caches are there.

    Nobody starves. Let r begin to wait at counter s; B the tokens (each request at least 1) of what
    waits or is half done then (whole prompts, where the cache may lose their beginning); G the most
    that one pass adds to the counter; L the longest prompt; passes take from the head without
    leaving anybody out. The first pass that finds r aged begins below s + theta_age + G, as the one
    before began below s + theta_age. From there on a request goes before r only if it has a smaller
    (since, id), so it waited when r came: B at most. Of later ones none is begun any more; one
    prompt that is in chunks may still be finished: L at most. Thus r begins in a pass that begins
    below

        s + theta_age + G + B + L,

    with one class, or for r in the highest one; below that the tokens of higher classes that come
    while r waits are added, which no bound exists for: strict priorities starve. With `theta_class`
    finite the bound holds for every class, with theta_class for theta_age and B over all classes.

    The counter: prefill tokens computed so far, which SGLang keeps on every rank, from the same
    batches (`Scheduler.processed_tokens_counter`, and `Req.arrival_processed_tokens` as `since`). A
    pass without prefill does not move it, but overtakes nobody either. Forward passes
    (`forward_ct`) would do as well; G, B and L then are in passes. See `theta_tokens` for seconds.

    Degraded: a `since` ahead of the counter has waited for nothing; `uncached` below 1 is 1.
    Cost: one sort, 5 ms for 10,000 waiting on one core; less on a queue that is nearly in order.
    Knobs: `theta_age` (in counts; 0 is first come first served, infinite never ages) and
    `theta_class`. ValueError: one that is negative or not a number.
    Source: Gimbal, III C, Algorithm 2, where r.prompt is the whole prompt and theta_age 5 s of wall
    clock; SGLang's `hrrn` ages by the same counter (srt/managers/schedule_policy.py).
    """

    def __init__(self, theta_age: float, theta_class: float = inf) -> None:
        for name, value in (("theta_age", theta_age), ("theta_class", theta_class)):
            if isnan(value) or value < 0:
                raise ValueError(f"{name} = {value:g} must be at least 0")
        self.theta_age = theta_age
        self.theta_class = theta_class

    def order(self, waiting: Sequence[WaitingRequest], count: int) -> list[int]:
        """Indices into `waiting`, who goes first first, at this value of the counter."""

        def key(index: int) -> tuple[bool, int, bool, int, int, str]:
            name, uncached, since, priority = waiting[index]
            if count - since >= self.theta_class:
                return (False, 0, False, since, since, name)
            if count - since >= self.theta_age:
                return (True, -priority, False, since, since, name)
            return (True, -priority, True, max(1, uncached), since, name)

        # Plain tuples: as fast as numpy's lexsort here, and any integer a client sends fits.
        return sorted(range(len(waiting)), key=key)


def theta_tokens(seconds: float, tokens_per_second: float) -> int:
    """theta_age as prefill tokens: what is computed in `seconds` of waiting, rounded up.

    The rate is that of the wall clock while requests wait, decode steps in between included (5 s at
    8,000 tokens/s: 40,000). It must be one number for all ranks of a group, changed by all before
    the same pass: either fixed at the start (from the profile's prefill times or the configuration,
    which all ranks read alike), or measured by attention-TP rank 0 alone and sent along with the
    requests that it broadcasts to the others, which take it up as they take up those. A rank that
    used its own measurement would sort differently. A wrong rate makes aging early or late and
    nothing else. ValueError: a rate that is not above 0, seconds below 0, or either not finite.
    """
    if not (isfinite(seconds) and seconds >= 0):
        raise ValueError(f"theta_age = {seconds:g} s must be at least 0 and finite")
    if not (isfinite(tokens_per_second) and tokens_per_second > 0):
        raise ValueError(f"a rate of {tokens_per_second:g} tokens/s must be above 0 and finite")
    return ceil(seconds * tokens_per_second)
