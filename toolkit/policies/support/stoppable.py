"""What a latency-sensitive request finds on a worker that stops best-effort prefills for it."""

from __future__ import annotations

from dataclasses import replace

from toolkit.policies.base import WorkerView


def without_efforts(view: WorkerView, efforts: int, tokens: int) -> WorkerView:
    """The worker as if its best-effort requests were not there: `efforts` of ours, with `tokens`
    prompt tokens in all, which give way within a slice.

    What is left is at least what we sent there otherwise, as a reading may lag behind both. KV that
    is in use stays in use: who gives way keeps it. With DP ranks it is of the rank.
    """
    inflight, inflight_tokens = view.inflight - efforts, view.inflight_tokens - tokens
    load = view.load
    if load is not None:
        waiting_tokens = load.waiting_tokens + load.sent_tokens
        load = replace(
            load,
            running=0,
            waiting=max(inflight, load.requests - efforts),
            waiting_tokens=max(inflight_tokens, waiting_tokens - tokens),
            sent_requests=0,
            sent_tokens=0,
        )
    return replace(view, inflight=inflight, inflight_tokens=inflight_tokens, load=load)
