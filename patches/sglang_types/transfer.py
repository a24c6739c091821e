"""How KV gets from one worker to another (SGLang's disaggregation)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import zmq
    from torch import Tensor


class Sender(Protocol):
    """SGLang's Mooncake sender: it sends one request's KV to a decode worker."""

    kv_mgr: SendingManager
    bootstrap_room: int
    bootstrap_server_url: str

    def init(self, num_kv_indices: int, aux_index: int) -> None: ...

    def send(self, kv_indices: object, *state: object, num_kv_tokens: int) -> None: ...

    def pop_decode_prefix_len(self) -> int: ...

    def poll(self) -> int: ...

    def abort(self) -> None: ...

    def clear(self) -> None: ...

    def failure_exception(self) -> None: ...

    def get_transfer_metric(self) -> TransferMetric: ...


class TransferMetric(Protocol):
    """What a sender has sent."""

    transfer_total_bytes: int | None


class KvArguments(Protocol):
    """SGLang's `KVArgs`: the KV pool as a manager sends from it."""

    state_types: list[object]
    engine_rank: int
    rust_http_port: int | None
    prefill_start_layer: int
    prefill_end_layer: int | None
    kv_head_num: int
    total_kv_head_num: int


class SendingManager(Protocol):
    """SGLang's KV manager of a rank that sends."""

    kv_args: KvArguments
    kv_item_lens_sum: int
    attn_cp_rank: int
    attn_dp_rank: int
    attn_tp_rank: int
    pp_rank: int
    system_dp_rank: int
    system_dp_size: int
    bootstrap_host: str
    bootstrap_port: int

    def record_failure(self, bootstrap_room: int, failure_reason: str) -> None: ...

    def update_status(self, bootstrap_room: int, status: int) -> None: ...


class ReceivingManager(Protocol):
    """SGLang's KV manager of a rank that receives: what it knows of prefill workers."""

    kv_args: KvArguments
    heartbeat_failures: dict[str, int]
    connection_lock: AbstractContextManager[object]
    connection_pool: dict[str, list[Rank]]
    prefill_info_table: dict[str, object]


Rank = Mapping[str, str | int]
"""Where a prefill rank is: `rank_ip` and `rank_port`."""


class KvReceiver(Protocol):
    """SGLang's receiver of one request's KV, on a decode rank."""

    kv_mgr: ReceivingManager
    bootstrap_infos: list[Rank] | None

    def _connect_to_bootstrap_server(self, info: Rank) -> tuple[zmq.Socket[bytes], object]: ...

    def disconnect_endpoint(self, endpoint: str) -> None: ...


class MetadataBuffers(Protocol):
    """Rows that go over with the KV, one of each request."""

    cached_tokens: Tensor
    output_ids: Tensor
    bootstrap_room: Tensor
    output_top_logprobs_idx: Tensor
    output_top_logprobs_val: Tensor
    output_topk_p: Tensor
    output_topk_index: Tensor
    output_hidden_states: Tensor

    def set_buf(self, req: object) -> None: ...


class RowAllocator(Protocol):
    """Of the rows of metadata."""

    def alloc(self) -> int | None: ...

    def free(self, free_index: int) -> None: ...

    def available_size(self) -> int: ...
