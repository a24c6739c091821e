"""A worker as it stands after what was given out in the same round."""

from msgspec.structs import replace

from toolkit.policies.support.readings import possible
from toolkit.policies.views import Load, WorkerView


def readable(worker: WorkerView) -> WorkerView:
    """Without a reading that cannot be true: policies take numbers as they are."""
    if worker.load is None or possible(worker.load):
        return worker
    return replace(worker, load=None)


def with_sent(worker: WorkerView, size: float, pool: float) -> WorkerView:
    """The worker after one more request of `size` KV tokens was sent to it; as `Ranks.take`."""
    tokens = int(size) if size <= pool else 0
    load: Load | None = worker.load
    if load is not None:
        load = replace(
            load,
            sent_requests=load.sent_requests + 1,
            sent_tokens=load.sent_tokens + tokens,
        )
    return replace(
        worker,
        inflight=worker.inflight + 1,
        inflight_tokens=worker.inflight_tokens + tokens,
        load=load,
    )
