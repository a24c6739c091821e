"""Answer a request for one token from its prefill worker, as a decode worker would answer it.

That token is there when the prefill has run. A decode worker would only be sent the KV of the whole
prompt to repeat it. The router says that nobody will ask for the KV
(`toolkit.contract.prefill_only`), as SGLang itself does to warm up. Of such a request SGLang says
that it ended by its length, of which it says 0, whatever the token was, and it leaves the prompt
out of the prefix cache. Here it ends as any other does (end of text, stop tokens and strings, a
grammar's end, its length), and its prompt can be found again: a client that asks for one token asks
for many, about one text.

Its KV is free at once: there is nothing to wait for, and every rank of a worker knows so by itself.
With pipeline stages ranks must agree first; there SGLang's own way stays, and the patch is not
listed.
"""

import inspect

from patches.base import EITHER, Hook, Patch, PatchError, Variant
from patches.layers import Original
from patches.pd.late_binding import newly_finished
from patches.sglang_types import Batch, PrefixCache, Req, Scheduler
from toolkit.contract import prefill_only

MIXIN = "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
REQ = "sglang.srt.managers.schedule_batch.Req"
CACHE = "sglang.srt.mem_cache.base_prefix_cache"


def alone(req: Req) -> bool:
    """Whether no decode worker is to have it. Room 0 is of SGLang's own probes."""
    return req.bootstrap_host == prefill_only.HOST and bool(req.bootstrap_room)


def _keep_its_prompt(
    original: Original[object], queue: object, req: Req, *args: object, **kwargs: object
) -> object:
    if alone(req):
        req.skip_radix_cache_insert = False
    return original(queue, req, *args, **kwargs)


def _finish_at_once(
    original: Original[None], scheduler: Scheduler, batch: Batch, result: object
) -> None:
    from sglang.srt.disaggregation.prefill import maybe_release_metadata_buffer
    from sglang.srt.runtime_context import get_parallel

    done = [req for req in newly_finished(original, scheduler, batch, result) if alone(req)]
    if not done or get_parallel().pp_size > 1:
        return
    for req in done:
        scheduler.disagg_prefill_inflight_queue.remove(req)
        req.pending_bootstrap = False
        req.update_finish_state()  # on a prefill worker one token is the most that it may have
        _release(req, scheduler.tree_cache)
        _tell_cache(req, scheduler.tree_cache)
        req.time_stats.set_completion_time()
    scheduler.output_streamer.stream_output(done, any(req.return_logprob for req in done))
    for req in done:
        maybe_release_metadata_buffer(req, scheduler.req_to_metadata_buffer_idx_allocator)


def _release(req: Req, tree_cache: PrefixCache) -> None:
    """Give its KV back, and leave its prompt in the cache."""
    from sglang.srt.mem_cache.common import release_kv_cache

    # From 0.5.22 on it has to be said.
    said = "checkpoint" in inspect.signature(release_kv_cache).parameters
    release_kv_cache(req, tree_cache, **({"checkpoint": True} if said else {}))


def _tell_cache(req: Req, tree_cache: PrefixCache) -> None:
    """That it has ended well; 0.5.17 tells its cache of those only that were aborted."""
    from sglang.srt.mem_cache import base_prefix_cache

    outcome = getattr(base_prefix_cache, "CacheRequestOutcome", None)
    if outcome is not None:
        tree_cache.finish(req.cache_request_handle, outcome.SUCCESS)


def _check_host() -> None:
    from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST

    if FAKE_BOOTSTRAP_HOST != prefill_only.HOST:
        raise PatchError(f"SGLang names {FAKE_BOOTSTRAP_HOST}, the router {prefill_only.HOST}")


PATCH = Patch(
    name=prefill_only.PATCH,
    why="a request for one token has all it asks for when its prefill has run",
    gain="requests for one token",
    after={
        "late_binding": "what it finishes leaves the queue in which that one looks",
    },
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue.add",
            _keep_its_prompt,
            ("self", "req", "num_kv_heads"),
        ),
        Hook(
            f"{MIXIN}.process_batch_result_disagg_prefill",
            _finish_at_once,
            ("self", "batch", "result"),
        ),
    ),
    requires=(
        f"{REQ}.update_finish_state",
        "sglang.srt.disaggregation.prefill.maybe_release_metadata_buffer",
        "sglang.srt.disaggregation.utils.FAKE_BOOTSTRAP_HOST",
        "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
        ".stream_output",
        "sglang.srt.mem_cache.common.release_kv_cache",
        "sglang.srt.runtime_context.get_parallel",
    ),
    variants=(
        Variant("from 0.5.20", requires=(f"{CACHE}.CacheRequestOutcome",)),
        Variant(
            "0.5.17",
            requires=("sglang.srt.mem_cache.hiradix_cache.HiRadixCache.release_aborted_request",),
        ),
    ),
    attach=_check_host,
)
