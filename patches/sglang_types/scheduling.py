"""The scheduler of one rank, and what it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, Self

from patches.sglang_types.flags import ModelConfig, ServerArgs
from patches.sglang_types.models import (
    ForwardMode,
    ModelRunner,
    PenaltyState,
    RequestTable,
    SlotAllocator,
)
from patches.sglang_types.requests import Abort, Req
from patches.sglang_types.transfer import (
    MetadataBuffers,
    ReceivingManager,
    RowAllocator,
)

if TYPE_CHECKING:
    import zmq
    from torch import Tensor


class Batch(Protocol):
    """SGLang's `ScheduleBatch`."""

    reqs: list[Req]
    forward_mode: ForwardMode
    forward_iter: int
    launch_ts: float
    extend_num_tokens: int | None
    """Of a prefill."""
    batch_is_full: bool
    enable_overlap: bool
    device: str
    seq_lens_cpu: Tensor
    sampling_info: PenaltyState
    req_to_token_pool: RequestTable

    def batch_size(self) -> int: ...

    def is_empty(self) -> bool: ...

    def filter_batch(
        self,
        chunked_req_to_exclude: list[Req] | None = None,
        keep_indices: list[int] | None = None,
    ) -> None: ...

    def merge_batch(self, other: Batch) -> None: ...

    @property
    def release_req(self) -> Callable[..., object]:
        """Its parameters differ between releases."""


class Plan(Protocol):
    """What the scheduler runs next; no batch: nothing finds room."""

    batch_to_run: Batch | None
    running_batch: Batch


class Result(Protocol):
    """What a forward has brought."""

    @property
    def routed_experts_output(self) -> object: ...


class Dispatcher(Protocol):
    """SGLang's `TypeBasedDispatcher`: by the type of a message, who takes it."""

    def __init__(self, mapping: Sequence[tuple[type, Callable[..., object]]]) -> None: ...

    def __iadd__(self, other: Dispatcher) -> Self: ...

    def __call__(self, message: object) -> object: ...


class Output(Protocol):
    """The way to the HTTP process; without a socket on ranks that do not talk to it."""

    socket: object

    def send_output(self, output: object, recv_obj: object = None) -> None: ...


class Channels(Protocol):
    """SGLang's `SchedulerIpcChannels`."""

    send_to_tokenizer: Output


class RequestReceiver(Protocol):
    """SGLang's `SchedulerRequestReceiver`."""

    recv_from_tokenizer: zmq.Socket[bytes]
    input_blocker: object
    recv_skipper: object
    scripted_scheduler_hook: object

    def recv_requests(self) -> Iterable[object]: ...

    def _pull_raw_reqs(self) -> list[object]: ...

    def unwrap_pickle_wrapper(self, recv_reqs: list[object]) -> None: ...


class OutputStreamer(Protocol):
    """SGLang's `SchedulerOutputStreamer`."""

    def stream_output(self, reqs: Sequence[Req], return_logprob: bool) -> None: ...


class PrefixCache(Protocol):
    """SGLang's cache of prefixes."""

    def supports_fast_match_prefix(self) -> bool: ...

    def finish(self, handle: object, outcome: object) -> None: ...


class SchedulePolicy(Protocol):
    """SGLang's `SchedulePolicy`: the order of the waiting queue."""

    tree_cache: PrefixCache
    enable_priority_scheduling: bool
    priority_sign: int


class Mode(Protocol):
    """SGLang's `DisaggregationMode`."""

    value: str


class Speculation(Protocol):
    """SGLang's `SpeculativeAlgorithm`."""

    def is_none(self) -> bool: ...


class Worker(Protocol):
    """SGLang's `TpModelWorker`."""

    model_runner: ModelRunner


class DecodeRequest(Protocol):
    """A request whose KV is to come."""

    req: Req
    metadata_buffer_index: int
    waiting_for_input: bool


class BootstrapQueue(Protocol):
    """Of a prefill worker: requests that have not met their decode worker."""

    queue: list[Req]
    scheduler: Scheduler
    req_to_metadata_buffer_idx_allocator: RowAllocator

    def pop_bootstrapped(self) -> list[Req]: ...


class PreallocQueue(Protocol):
    """Of a decode worker: requests that have no place yet."""

    queue: list[DecodeRequest]
    retracted_queue: list[Req]
    scheduler: Scheduler
    kv_manager: ReceivingManager
    token_to_kv_pool: KvPool
    enable_staging: bool
    max_total_num_tokens: int
    num_reserved_decode_tokens: int
    req_to_metadata_buffer_idx_allocator: RowAllocator

    def pop_preallocated(self) -> tuple[list[DecodeRequest], object]: ...

    def _prealloc_required_tokens(self, req: Req) -> tuple[int, int]: ...

    def _allocatable_token_budgets(self, count_retracted: bool) -> int: ...


class TransferQueue(Protocol):
    """Of a decode worker: requests whose KV is on its way."""

    queue: list[DecodeRequest]
    scheduler: Scheduler
    metadata_buffers: MetadataBuffers

    def extend(self, decode_reqs: list[DecodeRequest]) -> None: ...


class KvPool(Protocol):
    """The KV itself."""

    start_layer: int
    head_num: int


class Scheduler(Protocol):
    """SGLang's `Scheduler`, of one rank."""

    server_args: ServerArgs
    model_config: ModelConfig
    tp_worker: Worker
    attn_tp_cpu_group: object
    forward_stream_ctx: AbstractContextManager[object]
    spec_algorithm: Speculation
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
    schedule_low_priority_values_first: bool

    waiting_queue: list[Req]
    running_batch: Batch
    last_batch: Batch | None
    cur_batch_for_debug: Batch | None
    chunked_req: Req | None
    """A prompt of which a part is computed."""
    _pending_chunked_abort_req: Req | None
    forward_ct: int

    req_to_token_pool: RequestTable
    token_to_kv_pool_allocator: SlotAllocator
    tree_cache: PrefixCache
    request_receiver: RequestReceiver
    ipc_channels: Channels
    output_streamer: OutputStreamer
    idle_sleeper: object
    _request_dispatcher: Dispatcher

    disaggregation_mode: Mode
    transfer_backend: object
    disagg_prefill_bootstrap_queue: BootstrapQueue
    disagg_prefill_inflight_queue: list[Req]
    disagg_decode_prealloc_queue: PreallocQueue
    disagg_decode_transfer_queue: TransferQueue
    disagg_metadata_buffers: MetadataBuffers
    req_to_metadata_buffer_idx_allocator: RowAllocator

    def is_fully_idle(self) -> bool: ...

    def process_input_requests(self, recv_reqs: list[object]) -> None: ...

    def _add_request_to_queue(self, req: Req, is_retracted: bool = False) -> None: ...

    def stash_chunked_request(self, req: Req) -> None: ...

    def get_new_batch_prefill(self, running_batch: Batch) -> Plan: ...

    def get_next_disagg_prefill_batch_to_run(
        self, running_batch: Batch, last_batch: Batch | None
    ) -> Plan: ...

    def run_batch(self, batch: Batch) -> Result: ...

    def process_batch_result(self, batch: Batch, result: Result) -> None: ...

    def process_disagg_prefill_inflight_queue(self) -> object: ...

    def handle_bootstrap_failure(self, req: Req) -> None: ...

    def abort_request(self, recv_req: Abort) -> None: ...
