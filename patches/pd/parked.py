"""Keep a finished prefill's KV until its decode worker has it.

The router is told of a finished prefill and chooses a decode worker by it, so there always is one
that will ask for the KV. From SGLang 0.5.22 on a prefill worker whose request slots are all taken
releases such a request and prefills it again, since there a decode worker may have room for others
than those that are through. Here that is work for nothing, and wrong: the thread that sends KV when
it is asked for (`patches.pd.early_send`) would send rows that have other tokens' KV by then.

Not in the middle of a prompt: what yields there is not finished, and goes back as before.
"""

from patches.base import EITHER, Hook, Patch
from patches.layers import Original
from patches.sglang_types import Req, Scheduler

MIXIN = "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"


class _Round:
    """The look at the finished ones that is under way, if one is."""

    under_way = False
    kept: tuple[Req, ...] = ()
    """To be put back: SGLang takes what it releases out of its queue."""


def _put_back(
    original: Original[object], scheduler: Scheduler, *args: object, **kwargs: object
) -> object:
    _Round.under_way = True
    try:
        return original(scheduler, *args, **kwargs)
    finally:
        scheduler.disagg_prefill_inflight_queue.extend(_Round.kept)
        _Round.under_way, _Round.kept = False, ()


def _keep(original: Original[None], scheduler: Scheduler, req: Req) -> None:
    if _Round.under_way:
        _Round.kept += (req,)
    else:
        original(scheduler, req)


PATCH = Patch(
    name="parked",
    why="a finished prefill's KV stays until it is sent: the router has been told that it is there",
    after={
        "first_token": "a finished prefill is put back, not ended for having told its token",
    },
    independent_of={
        "kv_transfer": "one reads what has been sent, the other puts back what has not",
    },
    processes=EITHER,
    hooks=(
        Hook(f"{MIXIN}.process_disagg_prefill_inflight_queue", _put_back, ("self",)),
        Hook(f"{MIXIN}.optimistic_release_and_requeue", _keep, ("self", "req")),
    ),
)
