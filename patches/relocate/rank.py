"""What each rank does with an order: move the weights and install the rows, between two steps.

The weights go by SGLang's own EPLB machinery (`eplb/expert_location_updater.py`), a layer at a
time; the map's tables are computed for the changed layers alone, since SGLang computes all layers'
anew, which takes seconds on a wide server. All ranks check an order alike before any of them
begins: what one refuses all refuse.

On a GPU all of it is queued on the forward's stream: behind the forward that runs and before the
next one. The tables are written in place, so CUDA graphs see them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from patches.base import EITHER, Hook, Patch
from patches.dp import layout
from patches.layers import Original
from patches.relocate.order import Relocated, RelocationOrder, Row
from patches.scheduler_state import of
from patches.sglang_types import ExpertMap, ExpertRank, Scheduler
from toolkit.contract.variables import RELOCATE_VARIABLE
from toolkit.limited_logs import limited_logger

if TYPE_CHECKING:
    from torch import Tensor

log = limited_logger("toolkit.relocate")

_EPLB = "sglang.srt.eplb"
WEIGHTS = "routed_experts_weights_of_layer"
"""By layer, the tensors of its experts; a model that SGLang cannot move has none."""


@dataclass
class MapSerial:
    """`number`: orders that were carried out."""

    number: int = 0


def obstacle(scheduler: Scheduler) -> str:
    """Why experts cannot be moved on this server; empty where they can. The same on all ranks."""
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata
    from sglang.srt.runtime_context import get_exec, get_parallel

    moe, parallel = get_exec().moe, get_parallel()
    runner = scheduler.tp_worker.model_runner
    if get_global_expert_location_metadata() is None:
        return "SGLang has no expert map for this model"
    if not hasattr(runner.model, WEIGHTS):
        return f"SGLang cannot move this model's experts (it has no {WEIGHTS})"
    if moe.enable_eplb:
        return "--enable-eplb moves them itself: leave it out"
    if moe.ep_dispatch_algorithm not in ("static", "dynamic"):
        return (
            "tokens go to logical experts: set --ep-dispatch-algorithm dynamic (static with an "
            f"all-to-all backend), not {moe.ep_dispatch_algorithm}"
        )
    if parallel.pp_size > 1:
        return "pipeline stages take orders up at different steps"
    if parallel.ep_size != parallel.tp_size:
        return f"--ep-size {parallel.ep_size} must be --tp-size {parallel.tp_size}"
    if parallel.ep_size < 2:
        return "one GPU holds all experts: there is nowhere to move them"
    return ""


def wrong(rows: dict[int, Row], known: Sequence[int], slots: int, experts: int) -> str:
    """What is wrong with the rows of an order; `known`: layers that have experts."""
    everyone = set(range(experts))
    for layer, row in sorted(rows.items()):
        if layer not in known:
            return f"layer {layer} has no experts here (these have: {known[0]} to {known[-1]})"
        if len(row) != slots:
            return f"layer {layer} has {slots} slots, the order has {len(row)}"
        if set(row) != everyone:
            odd = sorted(everyone ^ set(row))
            return f"layer {layer}: each of {experts} experts needs a slot; look at {odd[:5]}"
    return ""


def _take_orders(original: Original[None], scheduler: Scheduler) -> None:
    original(scheduler)
    dispatcher = scheduler._request_dispatcher
    dispatcher += type(dispatcher)([(RelocationOrder, lambda order: carry_out(scheduler, order))])


def carry_out(scheduler: Scheduler, order: RelocationOrder) -> None:
    """Do what an order asks for, and answer it."""
    answer = _answer(scheduler, order)
    # Only the rank that talks to the tokenizer has a socket; on the others this is a no-op.
    scheduler.ipc_channels.send_to_tokenizer.send_output(answer)


def _answer(scheduler: Scheduler, order: RelocationOrder) -> Relocated:
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata
    from sglang.srt.runtime_context import get_exec, get_parallel

    number, dp_rank, problem = order.number, layout.rank(scheduler), obstacle(scheduler)
    serial = of(scheduler).get(MapSerial)
    metadata = get_global_expert_location_metadata()
    if metadata is None:
        return Relocated(number, dp_rank, problem)
    slots = metadata.physical_to_logical_map_cpu.shape[1]
    weights = getattr(scheduler.tp_worker.model_runner.model, WEIGHTS, {})
    known = tuple(sorted(weights.keys()))
    if not order.rows:
        parallel = get_parallel()
        return Relocated(
            number,
            dp_rank,
            problem,
            serial.number,
            _rows(metadata),
            known,
            metadata.num_logical_experts,
            _expert_bytes(weights[known[0]]) if known else 0,
            metadata.ep_size,
            metadata.ep_size // parallel.nnodes,
            str(get_exec().moe.ep_dispatch_algorithm),
        )
    if not problem and order.serial != serial.number:
        problem = f"the map is number {serial.number} by now, the order builds on {order.serial}"
    if not problem:
        problem = wrong(order.rows, known, slots, metadata.num_logical_experts)
    if problem:
        return Relocated(number, dp_rank, problem, serial.number)
    begin = time.perf_counter()
    came = _install(scheduler, metadata, weights, order.rows)
    serial.number += 1
    seconds = time.perf_counter() - begin
    rows = _rows(metadata)
    return Relocated(number, dp_rank, "", serial.number, rows, seconds=seconds, bytes=came)


def _rows(metadata: ExpertMap) -> dict[int, Row]:
    table = metadata.physical_to_logical_map_cpu
    return {layer: tuple(row) for layer, row in enumerate(table.tolist())}


def _install(
    scheduler: Scheduler,
    metadata: ExpertMap,
    weights: Mapping[int, Sequence[Tensor]],
    rows: dict[int, Row],
) -> int:
    """Move and install; the bytes that came from other ranks."""
    import torch
    from sglang.srt.eplb.expert_location_updater import (
        create_temp_buffers,
        update_expert_weights_single_layer,
    )
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    world = torch.distributed.get_world_size()
    slots = metadata.num_local_physical_experts
    own = range(parallel.tp_rank * slots, (parallel.tp_rank + 1) * slots)
    came = 0
    with scheduler.forward_stream_ctx:
        buffers: list[Tensor] = []
        for layer, row in sorted(rows.items()):
            tensors = weights[layer]
            if [each.shape for each in buffers] != [each.shape for each in tensors]:
                buffers = create_temp_buffers(tensors)
            before = metadata.physical_to_logical_map_cpu[layer].tolist()
            update_expert_weights_single_layer(
                routed_experts_weights=tensors,
                temp_buffers=buffers,
                old_physical_to_logical_map=before,
                new_physical_to_logical_map=list(row),
                num_local_physical_experts=slots,
                num_gpu_per_node=world // parallel.nnodes,
                rank=parallel.tp_rank,
                world_size=world,
            )
            _write_tables(metadata, layer, row, parallel)
            held = {before[slot] for slot in own}
            new = {row[slot] for slot in own} - held
            came += len(new) * _expert_bytes(tensors)
        device = buffers[0].device
        if device.type != "cpu":
            torch.get_device_module(device).current_stream().synchronize()
    return came


def _expert_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(each[0].nbytes for each in tensors)


def _write_tables(metadata: ExpertMap, layer: int, row: Row, parallel: ExpertRank) -> None:
    """The layer's rows of the map's tables, in place."""
    import torch
    from sglang.srt.eplb import expert_location

    physical = torch.tensor([row], dtype=metadata.physical_to_logical_map_cpu.dtype)
    copies = expert_location._compute_logical_to_all_physical_map(
        physical_to_logical_map=physical,
        num_logical_experts=metadata.num_logical_experts,
        ep_size=metadata.ep_size,
        moe_ep_rank=parallel.moe_ep_rank,
    )[0]
    valid = (copies != -1).sum(dim=-1)
    padded = torch.full_like(metadata.logical_to_all_physical_map_cpu[layer], -1)
    padded[:, : copies.shape[1]] = copies
    metadata.physical_to_logical_map_cpu[layer] = physical[0]
    metadata.physical_to_logical_map[layer] = physical[0].to(
        metadata.physical_to_logical_map.device
    )
    metadata.logical_to_all_physical_map_cpu[layer] = padded
    everywhere = metadata.logical_to_all_physical_map
    everywhere[layer] = padded.to(everywhere.device)
    count = metadata.logical_to_all_physical_map_num_valid
    count[layer] = valid.to(count.device, count.dtype)
    dispatch = metadata.logical_to_rank_dispatch_physical_map
    if dispatch is not None:
        # Where no replica is near, each rank takes the next one, so that all get their share.
        turn = (parallel.moe_ep_rank % valid).unsqueeze(-1)
        chosen = copies.gather(1, turn).squeeze(-1)
        dispatch[layer] = chosen.to(dispatch.device, dispatch.dtype)


PATCH = Patch(
    name="relocation_rank",
    why="experts move to where the traffic is while the worker serves",
    independent_of={
        "move_outgoing": "each hears orders of its own kind",
    },
    processes=EITHER,
    variable=RELOCATE_VARIABLE,
    hooks=(
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.init_request_dispatcher",
            _take_orders,
            ("self",),
        ),
    ),
    requires=(
        f"{_EPLB}.expert_location.get_global_expert_location_metadata",
        f"{_EPLB}.expert_location._compute_logical_to_all_physical_map",
        f"{_EPLB}.expert_location.ExpertLocationMetadata.num_local_physical_experts",
        f"{_EPLB}.expert_location_updater.create_temp_buffers",
        f"{_EPLB}.expert_location_updater.update_expert_weights_single_layer",
        "sglang.srt.managers.scheduler_components.output_sender.SenderWrapper.send_output",
        "sglang.srt.runtime_context.get_exec",
        "sglang.srt.runtime_context.get_parallel",
    ),
)
