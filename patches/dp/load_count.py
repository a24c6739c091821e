"""Load snapshots say how many requests their rank has received.

SGLang's DP controller must add to a snapshot what it has sent and the snapshot does not contain
(`patches.dp.loads`). Its time cannot tell: a scheduler reads its socket at the start of a loop,
runs a forward, and publishes then, so that what came during the forward is older than the snapshot
and not in it. Here each scheduler counts the requests that it takes from its socket, and writes the
count into its snapshots as one more field, which every other reader passes over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from patches.base import Hook, Patch, Process, Variant
from patches.dp.method import chosen
from patches.layers import Original
from patches.scheduler_state import current, of
from patches.sglang_types import Scheduler

if TYPE_CHECKING:
    import msgspec

SNAPSHOT = "sglang.srt.managers.load_snapshot"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


@dataclass
class ReceivedRequests:
    """That the rank has taken from its socket."""

    count: int = 0


@cache
def counted_snapshot() -> type[msgspec.Struct]:
    """SGLang's `LoadSnapshot` and `received`, -1 where nobody counts."""
    import msgspec
    from sglang.srt.managers.load_snapshot import LoadSnapshot

    return msgspec.defstruct(
        "CountedSnapshot", [("received", int, -1)], bases=(LoadSnapshot,), omit_defaults=True
    )


def _count_received(
    original: Original[object], scheduler: Scheduler, recv_reqs: Sequence[object]
) -> object:
    if chosen() is not None:
        # Health checks of a busy scheduler are dropped in there: they were received all the same.
        received = of(scheduler).get(ReceivedRequests)
        received.count += sum(_requests_in(scheduler, each) for each in recv_reqs)
    return original(scheduler, recv_reqs)


def _requests_in(scheduler: Scheduler, received: object) -> int:
    """How many requests came in one message: none in an order (a flush, an abort)."""
    found = getattr(scheduler, "_tokenized_requests", None)
    if found is not None:
        return len(found(received))
    from sglang.srt.managers import io_struct  # 0.5.17

    if isinstance(
        received, (io_struct.TokenizedGenerateReqInput, io_struct.TokenizedEmbeddingReqInput)
    ):
        return 1
    batches = (io_struct.BatchTokenizedGenerateReqInput, io_struct.BatchTokenizedEmbeddingReqInput)
    return len(received) if isinstance(received, batches) else 0


def _say_received(original: Original[msgspec.Struct], inquirer: object) -> object:
    snapshot = original(inquirer)
    if chosen() is None:
        return snapshot
    fields = {name: getattr(snapshot, name) for name in snapshot.__struct_fields__}
    return counted_snapshot()(**fields, received=current().get(ReceivedRequests).count)


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
            f"{SCHEDULER}.process_input_requests",
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
    requires=(f"{SNAPSHOT}.LoadSnapshot",),
    variants=(
        Variant("from 0.5.20", requires=(f"{SCHEDULER}._tokenized_requests",)),
        Variant(
            "0.5.17",
            requires=(
                "sglang.srt.managers.io_struct.BatchTokenizedEmbeddingReqInput.__len__",
                "sglang.srt.managers.io_struct.BatchTokenizedGenerateReqInput.__len__",
            ),
        ),
    ),
)

READER_PATCH = Patch(
    name="load_count_reader",
    why="SGLang's reader would leave out the count of received requests",
    processes=frozenset({Process.CONTROLLER}),
    requires=(f"{SNAPSHOT}.snapshot_decoder", f"{SNAPSHOT}.LoadSnapshot"),
    attach=_read_counted,
)
