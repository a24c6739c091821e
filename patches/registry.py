"""The list of patches, and which of them a process gets."""

import os

from patches.base import Patch, Process
from patches.cpu import (
    attention,
    attention_sinks,
    background,
    deterministic,
    device_module,
    drafts,
    expert_parallel,
    expert_remap,
    group_scatter,
    host_indices,
    host_memory,
    host_transfer,
    idle,
    latent_attention,
    lora,
    nccl,
    template,
)
from patches.dp import controller, controller_process, load_count, progress, watch
from patches.experts import capture, halves, layer_numbers, signature
from patches.http import (
    accept_length,
    message_answers,
    message_sockets,
    output_ids,
    private_logs,
    private_ports,
    request_answers,
    request_guard,
    router_fields,
    stop_patterns,
    worker_key,
)
from patches.leaving_out import left_out
from patches.move import held, incoming, outgoing
from patches.move import order as move_order
from patches.order import inner_first
from patches.pd import (
    chunk_yield,
    early_choice,
    early_place,
    early_send,
    first_token,
    kv_reserve,
    kv_transfer,
    late_binding,
    parked,
    prefill_only,
    prefill_restart,
    rank_register,
    resume,
    resume_penalties,
    waiting_queue,
)
from patches.preempt import admission, answers, boundary
from patches.preempt import experts as preempt_experts
from patches.relocate import dispatch_info, rank
from patches.relocate import order as relocation_order
from patches.start import memory_turn
from patches.steps import batch_trace, lockstep, seeded, sent_time, step_log
from patches.streams import event_stream, expert_stream, heartbeat, notices, step_frames
from toolkit.contract.variables import WITHOUT_VARIABLE

ALL: tuple[Patch, ...] = (
    worker_key.PATCH,
    worker_key.SCHEDULER_PATCH,
    private_ports.PATCH,
    private_ports.SCHEDULER_PATCH,
    message_sockets.PATCH,
    private_logs.PATCH,
    template.PATCH,
    host_memory.PATCH,
    host_indices.PATCH,
    host_transfer.PATCH,
    idle.PATCH,
    background.PATCH,
    device_module.PATCH,
    lora.PATCH,
    nccl.PATCH,
    expert_remap.PATCH,
    expert_parallel.PATCH,
    group_scatter.PATCH,
    dispatch_info.PATCH,
    attention.PADDING_PATCH,
    attention.PATCH,
    drafts.PATCH,
    attention_sinks.PATCH,
    latent_attention.PATCH,
    deterministic.PATCH,
    event_stream.PATCH,
    event_stream.SCHEDULER_PATCH,
    output_ids.PATCH,
    accept_length.PATCH,
    signature.PATCH,
    first_token.PATCH,
    late_binding.PATCH,
    kv_transfer.PATCH,
    kv_reserve.PATCH,
    prefill_only.PATCH,
    parked.PATCH,
    early_send.PATCH,
    early_choice.PATCH,
    early_place.PATCH,
    capture.PATCH,
    halves.PATCH,
    layer_numbers.PATCH,
    lockstep.PATCH,
    step_log.PATCH,
    step_log.CPU_PATCH,
    expert_stream.PATCH,
    step_frames.PATCH,
    notices.PATCH,
    chunk_yield.PATCH,
    resume.PATCH,
    resume_penalties.PATCH,
    move_order.PATCH,
    outgoing.PATCH,
    held.PATCH,
    incoming.PATCH,
    relocation_order.PATCH,
    rank.PATCH,
    prefill_restart.PATCH,
    rank_register.PATCH,
    controller_process.PATCH,
    load_count.PATCH,
    load_count.READER_PATCH,
    controller.PATCH,
    progress.PATCH,
    watch.PATCH,
    waiting_queue.PATCH,
    admission.PATCH,
    boundary.PATCH,
    preempt_experts.PATCH,
    answers.PATCH,
    *sent_time.PATCHES,
    batch_trace.PATCH,
    stop_patterns.PATCH,
    heartbeat.PATCH,
    seeded.PATCH,
    memory_turn.PATCH,
    router_fields.PATCH,
    request_guard.PATCH,
    request_answers.PATCH,
    message_answers.PATCH,
)
"""In any order: which one wraps which follows from what they declare (`patches.order`)."""


def patches_for(process: Process, *, on_cpu: bool) -> tuple[Patch, ...]:
    """The patches of one process, in the order in which they are applied: inner ones first.

    Raises:
        PatchError: this worker is to do without one that it needs, or the order that the patches
            declare does not fit together.
    """
    without = left_out(ALL, os.environ.get(WITHOUT_VARIABLE, ""))
    return tuple(
        patch
        for patch in inner_first(ALL)
        if process in patch.processes
        and patch.name not in without
        and (on_cpu or not patch.cpu_only)
        and (not patch.variable or os.environ.get(patch.variable))
    )
