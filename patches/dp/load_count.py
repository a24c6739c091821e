"""Load snapshots say how many requests their rank has received.

SGLang's DP controller must add to a snapshot what it has sent and the snapshot does not contain
(`patches.dp.loads`). Its time cannot tell: a scheduler reads its socket at the start of a loop,
runs a forward, and publishes then, so that what came during the forward is older than the snapshot
and not in it. Here each scheduler counts the requests that it takes from its socket, and writes the
count into its snapshots as one more field, which every other reader passes over.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from patches.base import Hook, Patch, Process
from patches.dp.method import chosen

SNAPSHOT = "sglang.srt.managers.load_snapshot"

_received = 0


@cache
def counted_snapshot() -> Any:
    """SGLang's `LoadSnapshot` and `received`, -1 where nobody counts."""
    import msgspec
    from sglang.srt.managers.load_snapshot import LoadSnapshot

    return msgspec.defstruct(
        "CountedSnapshot", [("received", int, -1)], bases=(LoadSnapshot,), omit_defaults=True
    )


def _count_received(original: Any, scheduler: Any, recv_reqs: Any) -> Any:
    global _received
    if chosen() is not None:
        # Health checks of a busy scheduler are dropped in there: they were received all the same.
        _received += sum(len(scheduler._tokenized_requests(req)) for req in recv_reqs)
    return original(scheduler, recv_reqs)


def _say_received(original: Any, inquirer: Any) -> Any:
    snapshot = original(inquirer)
    if chosen() is None:
        return snapshot
    fields = {name: getattr(snapshot, name) for name in snapshot.__struct_fields__}
    return counted_snapshot()(**fields, received=_received)


def _read_counted() -> None:
    import msgspec
    from sglang.srt.managers import load_snapshot

    # Also what a node's ranks send over ZMQ goes through it into shared memory.
    load_snapshot.snapshot_decoder = msgspec.msgpack.Decoder(counted_snapshot())


PATCH = Patch(
    name="load_count",
    why="a load is only known with what was sent to the rank and is not in its snapshot",
    processes=frozenset({Process.SCHEDULER}),
    hooks=(
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.process_input_requests",
            _count_received,
            ("self", "recv_reqs"),
        ),
        Hook(
            "sglang.srt.managers.scheduler_components.load_inquirer"
            ".SchedulerLoadInquirer.get_loads",
            _say_received,
            ("self",),
        ),
    ),
    requires=(
        f"{SNAPSHOT}.LoadSnapshot",
        "sglang.srt.managers.scheduler.Scheduler._tokenized_requests",
    ),
)

READER_PATCH = Patch(
    name="load_count_reader",
    why="SGLang's reader would leave out the count of received requests",
    processes=frozenset({Process.CONTROLLER}),
    requires=(f"{SNAPSHOT}.snapshot_decoder", f"{SNAPSHOT}.LoadSnapshot"),
    attach=_read_counted,
)
