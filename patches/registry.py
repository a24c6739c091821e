"""The list of patches, and which of them a process gets."""

from __future__ import annotations

import os

from patches import (
    chunk_yield,
    controller_process,
    cpu_attention,
    cpu_background,
    cpu_device_module,
    cpu_expert_parallel,
    cpu_expert_remap,
    cpu_host_memory,
    cpu_idle,
    dp_controller,
    dp_progress,
    dp_watch,
    early_place,
    early_send,
    event_stream,
    expert_capture,
    expert_stream,
    kv_transfer,
    late_binding,
    load_count,
    message_sockets,
    output_ids,
    prefill_restart,
    private_logs,
    private_ports,
    request_answers,
    request_guard,
    resume,
    resume_penalties,
    signature,
    step_log,
    template,
    waiting_queue,
    worker_key,
)
from patches.base import Patch, Process

ALL: tuple[Patch, ...] = (
    worker_key.PATCH,
    worker_key.SCHEDULER_PATCH,
    private_ports.PATCH,
    private_ports.SCHEDULER_PATCH,
    message_sockets.PATCH,
    private_logs.PATCH,
    template.PATCH,
    cpu_host_memory.PATCH,
    cpu_idle.PATCH,
    cpu_background.PATCH,
    cpu_device_module.PATCH,
    cpu_expert_remap.PATCH,
    cpu_expert_parallel.PATCH,
    cpu_attention.PATCH,
    event_stream.PATCH,
    event_stream.SCHEDULER_PATCH,
    output_ids.PATCH,
    signature.PATCH,
    late_binding.PATCH,
    kv_transfer.PATCH,
    early_send.PATCH,
    early_place.PATCH,
    expert_capture.PATCH,
    step_log.PATCH,
    step_log.CPU_PATCH,
    expert_stream.PATCH,
    chunk_yield.PATCH,
    resume.PATCH,
    resume_penalties.PATCH,
    prefill_restart.PATCH,
    controller_process.PATCH,
    load_count.PATCH,
    load_count.READER_PATCH,
    dp_controller.PATCH,
    dp_progress.PATCH,
    dp_watch.PATCH,
    waiting_queue.PATCH,
    # Last, so around what the others hook: what they raise is caught as well.
    request_guard.PATCH,
    request_answers.PATCH,
)


def patches_for(process: Process, *, on_cpu: bool) -> tuple[Patch, ...]:
    """The patches of one process, in the order in which they are applied."""
    return tuple(
        patch
        for patch in ALL
        if process in patch.processes
        and (on_cpu or not patch.cpu_only)
        and (not patch.variable or os.environ.get(patch.variable))
    )
