"""CPU shim: DP-attention ranks that also share experts hand the sum of their outputs out by gloo.

Mends `srt/distributed/parallel_state.py:1256` (SGLang 0.5.21), where `reduce_scatterv` knows NCCL
only and ends the scheduler with `--ep-size` above 1 under DP attention. Sums all on every rank and
keeps the own part, as SGLang does for deterministic inference.
"""

from typing import Any

from patches.base import EITHER, Hook, Patch


def _by_all_reduce(
    original: Any, group: Any, input_: Any, output: Any = None, sizes: Any = None
) -> Any:
    rows = sizes or [len(input_) // group.world_size] * group.world_size
    first, count = sum(rows[: group.rank_in_group]), rows[group.rank_in_group]
    part = group.all_reduce(input_.clone()).narrow(0, first, count)
    return part.clone() if output is None else output.copy_(part)


PATCH = Patch(
    name="cpu_group_scatter",
    why="expert parallelism under DP attention sums outputs by NCCL only",
    processes=EITHER,
    cpu_only=True,
    hooks=(
        Hook(
            "sglang.srt.distributed.parallel_state.GroupCoordinator.reduce_scatterv",
            _by_all_reduce,
            ("self", "input_", "output", "sizes"),
        ),
    ),
    requires=("sglang.srt.distributed.parallel_state.GroupCoordinator.all_reduce",),
)
