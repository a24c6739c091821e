"""What a latency-sensitive request finds on a worker where best-effort work gives way to it."""

from collections.abc import Sequence

from msgspec.structs import replace

from toolkit.policies.views import WorkerView


def all_full(views: Sequence[WorkerView]) -> bool:
    """Whether no worker that is up has a slot left; a plain SGLang does not say, and has."""
    return all(0 < view.slots <= view.requests for view in views if view.healthy)


def without_best_effort(
    view: WorkerView, best_effort: int, tokens: int, moves: bool = False
) -> WorkerView:
    """The worker as if its best-effort requests were not there: `best_effort` of ours, with
    `tokens` prompt tokens in all, which give way within a slice.

    What is left is at least what we sent there otherwise, as a reading may lag behind both.
    `moves`: their KV leaves the pool (a paused answer's; not that of a prefill that was stopped).
    """
    inflight, inflight_tokens = view.inflight - best_effort, view.inflight_tokens - tokens
    load = view.load
    if load is not None:
        waiting_tokens = load.waiting_tokens + load.sent_tokens
        load = replace(
            load,
            running=0,
            used_tokens=max(0, load.used_tokens - tokens) if moves else load.used_tokens,
            waiting=max(inflight, load.requests - best_effort),
            waiting_tokens=max(inflight_tokens, waiting_tokens - tokens),
            sent_requests=0,
            sent_tokens=0,
        )
    return replace(view, inflight=inflight, inflight_tokens=inflight_tokens, load=load)
