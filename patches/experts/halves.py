"""Two-batch overlap: each half of a batch has its own rows in the capturer's buffer.

SGLang 0.5.21 runs the halves of a batch through the same layers in turn (`batch_overlap.operations.
_StageExecutor`), and the capturer writes what a layer has chosen into the buffer's first rows
(`state_capturer.base.BaseDeviceCache.capture`): the second half overwrites the first, and rows
behind the longer half stay those of an older batch. A half knows where its tokens stand in the
whole batch (`ForwardBatch.tbo_parent_token_range`); what it is padded with is not kept.

Under CUDA graphs the rows are those of the capture of the graph, whose split is that of its batch
size (`compute_split_indices_for_cuda_graph_replay`). Without an all-to-all backend a half holds the
tokens of all DP ranks, and the rows do not fit: `toolkit.contract.capturing` refuses that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from patches.base import EITHER, Hook, Patch
from patches.layers import Original
from patches.scheduler_state import current
from patches.sglang_types import DeviceCache, ForwardBatch

if TYPE_CHECKING:
    from torch import Tensor

EXECUTOR = "sglang.srt.batch_overlap.operations._StageExecutor"
_ROWS = "_toolkit_rows"


@dataclass
class HalvesState:
    """`rows`: of the half whose stage runs, first and behind the last; None: a whole batch's."""

    rows: tuple[int, int] | None = None


class Executor(Protocol):
    """SGLang's `_StageExecutor`: one half, stage by stage."""


def _note(
    original: Original[None],
    executor: Executor,
    debug_name: str,
    stages: object,
    inputs: dict[str, ForwardBatch],
    *args: object,
    **kwargs: object,
) -> None:
    original(executor, debug_name, stages, inputs, *args, **kwargs)
    rows = getattr(inputs["forward_batch"], "tbo_parent_token_range", None)
    setattr(executor, _ROWS, rows)


def _next(original: Original[object], executor: Executor) -> object:
    state = current().get(HalvesState)
    before, state.rows = state.rows, getattr(executor, _ROWS, None)
    try:
        return original(executor)
    finally:
        state.rows = before


def _capture(
    original: Original[None], cache: DeviceCache, layer_id: int, topk_indices: Tensor
) -> None:
    rows = current().get(HalvesState).rows
    if rows is None:
        original(cache, layer_id, topk_indices)
        return
    begin, end = rows
    count = min(len(topk_indices), end - begin)
    cache.buffer[begin : begin + count, layer_id, :] = topk_indices[:count]


PATCH = Patch(
    name="expert_halves",
    why="the second half of a batch overwrites the captured experts of the first",
    processes=EITHER,
    hooks=(
        Hook(f"{EXECUTOR}.__init__", _note, ("self", "debug_name", "stages", "inputs")),
        Hook(f"{EXECUTOR}.next", _next, ("self",)),
        Hook(
            "sglang.srt.state_capturer.base.BaseDeviceCache.capture",
            _capture,
            ("self", "layer_id", "topk_indices"),
        ),
    ),
)
