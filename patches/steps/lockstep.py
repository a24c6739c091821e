"""Which step of a DP-attention group a rank's forward belongs to, and which experts it used.

The ranks of such a group run their MoE layers together: a layer loads the experts that the tokens
of *all* ranks are routed to. So the distinct experts of a step are the union over the ranks, and
none of them knows it alone. To ask the others in every step would be one more collective on the
hot path; instead each rank logs a bit for each expert, and the HTTP process, which gets the logs of
all ranks, joins them by the number of the step (`patches.streams.step_join`).

The number is exact without a clock: before every step all ranks take part in one all-gather of
their token counts (`prepare_mlp_sync_batch`), so its n-th call on one rank is the n-th on all. A
rank with nothing to do runs an idle batch meanwhile and says so from time to time, or nobody could
tell its silence from a log that is still on its way.

Cost: no work on the GPU and no collective; on a scheduler's thread the packing of the bits that
were counted there anyway, and ceil(E / 8) bytes a layer and step in its log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from patches.base import Hook, Patch, Process
from patches.dp import layout
from patches.layers import Original
from patches.scheduler_state import current, of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from patches.sglang_types import Batch, Scheduler

KEPT = 64
"""Forwards whose results were never processed are forgotten."""


@dataclass
class Lockstep:
    """The all-gathers that this rank has taken part in, and the one before each forward."""

    count: int = 0
    forwards: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupSteps:
    """Where the rows of a `StepBlock` stand in the steps of their group of `ranks` ranks.

    `upto`: there are no more rows of this rank for steps up to this one. `steps`: int64 [rows].
    `used`: uint8 [rows, layers, width], a bit for each expert that the rank's own tokens used; all
    zero where that is not known (a prefill, nothing captured). `shape` is that of `used`.
    """

    ranks: int
    upto: int
    steps: bytes
    used: bytes
    shape: tuple[int, int, int]


@cache
def group_size() -> int:
    """Ranks whose experts this one shares, where they are captured; 1 for none."""
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

    parallel = get_parallel()
    # `moe_dp_size` copies of the experts would be groups of their own.
    alone = not layout.together(parallel) or parallel.moe_dp_size > 1
    return 1 if alone or get_global_experts_capturer() is None else layout.ranks(parallel)


def packed(used: list[NDArray[np.bool_] | None]) -> NDArray[np.uint8]:
    """uint8 [rows, layers, width] of what each row used, bool [layers, experts] or None."""
    import numpy as np

    bits = [None if each is None else np.packbits(each, axis=1) for each in used]
    layers = max((each.shape[0] for each in bits if each is not None), default=0)
    width = max((each.shape[1] for each in bits if each is not None), default=0)
    whole = np.zeros((len(bits), layers, width), dtype=np.uint8)
    for row, each in enumerate(bits):
        if each is not None:
            whole[row, : each.shape[0], : each.shape[1]] = each
    return whole


def _count(original: Original[object], adapter: object, local_batch: object) -> object:
    current().get(Lockstep).count += 1
    return original(adapter, local_batch)


def _note(
    original: Original[object],
    scheduler: Scheduler,
    batch: Batch,
    *args: object,
    **kwargs: object,
) -> object:
    result = original(scheduler, batch, *args, **kwargs)
    lockstep = of(scheduler).get(Lockstep)
    if lockstep.count:
        if len(lockstep.forwards) > KEPT:
            lockstep.forwards.clear()
        lockstep.forwards[batch.forward_iter] = lockstep.count
    return result


PATCH = Patch(
    name="lockstep",
    why="ranks that share their experts load the union of what their tokens need",
    independent_of={
        "preempt_boundary": "ranks that meet in every step are not stopped in one",
    },
    processes=frozenset({Process.SCHEDULER}),
    hooks=(
        Hook(
            "sglang.srt.managers.scheduler_components.dp_attn.SchedulerDPAttnAdapter"
            ".prepare_mlp_sync_batch",
            _count,
            ("self", "local_batch"),
        ),
        Hook("sglang.srt.managers.scheduler.Scheduler.run_batch", _note, ("self", "batch")),
    ),
    requires=(
        "sglang.srt.runtime_context.get_parallel",
        "sglang.srt.state_capturer.routed_experts.get_global_experts_capturer",
    ),
)
