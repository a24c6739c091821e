"""What patches read of SGLang's objects, as types. SGLang's objects fit them by their fields.

SGLang has its own classes for these, but nothing is imported of it before a worker starts, and a
type checker that followed its imports would take minutes.
"""

from __future__ import annotations

from array import array
from typing import Any, Protocol


class Snapshot(Protocol):
    """SGLang's `LoadSnapshot` with what `patches.dp.load_count` adds: `received`, the requests that
    the rank has taken from its socket since it started; -1 where nobody counts. The time is the
    rank's wall clock, seconds."""

    @property
    def timestamp(self) -> float: ...

    @property
    def dp_rank(self) -> int: ...

    @property
    def num_running_reqs(self) -> int: ...

    @property
    def num_waiting_reqs(self) -> int: ...

    @property
    def num_waiting_uncached_tokens(self) -> int: ...

    @property
    def num_used_tokens(self) -> int: ...

    @property
    def num_total_tokens(self) -> int: ...

    @property
    def max_total_num_tokens(self) -> int: ...

    @property
    def max_running_requests(self) -> int: ...

    @property
    def received(self) -> int: ...


class Req(Protocol):
    """SGLang's `Req`: one request in a scheduler. Lengths are in tokens."""

    rid: str
    origin_input_ids: array[int]
    output_ids: array[int]
    sampling_params: Any
    vocab_size: int | None
    priority: int
    return_logprob: bool
    grammar: Any
    tokenizer: Any
    multimodal_inputs: Any
    time_stats: Any
    kv: Any
    """Where its KV lies; None before it has any."""
    extend_range: Any
    cached_tokens: int
    num_matched_prefix_tokens: int
    retraction_count: int
    skip_radix_cache_insert: bool
    cache_request_handle: Any

    finished_reason: Any
    finished_len: int | None
    to_finish: Any
    """Why it ends with the step that runs; None where it goes on."""

    bootstrap_host: str | None
    bootstrap_room: int
    pending_bootstrap: bool
    pd_rebootstrap_in_progress: bool
    disagg_kv_sender: Any
    disagg_decode_prefix_len: int
    metadata_buffer_index: int
    """-1: it has none."""
    start_send_idx: int

    toolkit_late: int
    toolkit_resumed: bool
    toolkit_heard: Any
    toolkit_penalty_history: list[int]

    @property
    def output_ids_through_stop(self) -> array[int]: ...

    @property
    def seqlen(self) -> int: ...

    def finished(self) -> bool: ...

    def update_finish_state(self, new_accepted_len: int = 1) -> None: ...

    def set_finish_with_abort(self, error_msg: str) -> None: ...


class Batch(Protocol):
    """SGLang's `ScheduleBatch`."""

    reqs: list[Req]
    forward_mode: Any
    forward_iter: int
    launch_ts: float
    extend_num_tokens: int | None
    """Of a prefill."""
    batch_is_full: bool
    enable_overlap: bool
    device: str
    seq_lens_cpu: Any
    sampling_info: Any
    req_to_token_pool: Any

    def batch_size(self) -> int: ...

    def is_empty(self) -> bool: ...

    def filter_batch(
        self, chunked_req_to_exclude: Any = None, keep_indices: list[int] | None = None
    ) -> None: ...

    def merge_batch(self, other: Batch) -> None: ...

    release_req: Any
    """A function whose parameters differ between releases."""


class Scheduler(Protocol):
    """SGLang's `Scheduler`, of one rank. Its parts are not typed here."""

    server_args: Any
    model_config: Any
    tp_worker: Any
    attn_tp_cpu_group: Any
    forward_stream_ctx: Any
    spec_algorithm: Any
    enable_overlap: bool
    enable_lora: bool
    enable_hisparse: bool
    enable_staging: bool
    enable_priority_scheduling: bool
    enable_decode_hicache: bool
    is_hybrid_swa: bool
    is_hybrid_ssm: bool
    max_running_requests: int
    max_req_input_len: int

    waiting_queue: list[Req]
    running_batch: Batch
    last_batch: Batch | None
    cur_batch_for_debug: Batch | None
    chunked_req: Req | None
    """A prompt of which a part is computed."""
    _pending_chunked_abort_req: Req | None
    forward_ct: int

    req_to_token_pool: Any
    token_to_kv_pool_allocator: Any
    tree_cache: Any
    request_receiver: Any
    ipc_channels: Any
    output_streamer: Any
    idle_sleeper: Any
    _request_dispatcher: Any

    disaggregation_mode: Any
    transfer_backend: Any
    disagg_prefill_bootstrap_queue: Any
    disagg_prefill_inflight_queue: list[Req]
    disagg_decode_prealloc_queue: Any
    disagg_decode_transfer_queue: Any
    disagg_metadata_buffers: Any
    req_to_metadata_buffer_idx_allocator: Any

    def is_fully_idle(self) -> bool: ...

    def process_input_requests(self, recv_reqs: list[Any]) -> None: ...

    def _add_request_to_queue(self, req: Req, is_retracted: bool = False) -> None: ...

    def stash_chunked_request(self, req: Req) -> None: ...

    def get_new_batch_prefill(self, running_batch: Batch) -> Any: ...

    def get_next_disagg_prefill_batch_to_run(
        self, running_batch: Batch, last_batch: Batch | None
    ) -> Any: ...

    def run_batch(self, batch: Batch) -> Any: ...

    def process_batch_result(self, batch: Batch, result: Any) -> None: ...

    def process_disagg_prefill_inflight_queue(self) -> Any: ...

    def handle_bootstrap_failure(self, req: Req) -> None: ...
