"""The model of a rank, one forward of it, and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from patches.sglang_types.flags import ModelConfig, ServerArgs
from patches.sglang_types.requests import Req

if TYPE_CHECKING:
    from torch import Tensor, device


class RequestTable(Protocol):
    """SGLang's `ReqToTokenPool`: by a request's row, the slots of its KV."""

    req_to_token: Tensor
    size: int

    def available_size(self) -> int: ...


class SlotAllocator(Protocol):
    """Of slots in the KV pool."""

    page_size: int

    def free(self, free_index: Tensor) -> None: ...


class ForwardMode(Protocol):
    """What a batch is run for."""

    def is_decode(self) -> bool: ...

    def is_extend(self) -> bool: ...

    def is_extend_without_speculative(self) -> bool: ...

    def is_mixed(self) -> bool: ...

    def is_target_verify(self) -> bool: ...


class ForwardBatch(Protocol):
    """SGLang's `ForwardBatch`: a batch as the model runs it."""

    forward_mode: ForwardMode
    input_ids: Tensor
    extend_prefix_lens: Tensor
    extend_prefix_lens_cpu: list[int]
    extend_seq_lens_cpu: list[int]
    out_cache_loc: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    spec_info: Any


class Layer(Protocol):
    """A layer of the model (a `torch.nn.Module`)."""

    def register_forward_pre_hook(
        self, hook: Callable[..., None], *, with_kwargs: bool = False
    ) -> object: ...


class Layers(Protocol):
    """The part of a model that holds its layers, in order."""

    layers: Sequence[Layer]


class Model(Protocol):
    """A `torch.nn.Module`."""

    model: Layers

    def named_modules(self) -> Iterable[tuple[str, object]]: ...


class ModelRunner(Protocol):
    """SGLang's `ModelRunner`."""

    model: Model
    model_config: ModelConfig
    server_args: ServerArgs
    is_draft_worker: bool
    req_to_token_pool: RequestTable
    token_to_kv_pool: object
    attn_backend: MetadataBackend


class MetadataBackend(Protocol):
    """An attention backend: what it keeps of the batch that runs."""

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None: ...


class WindowPool(Protocol):
    """A KV pool that keeps sliding windows apart."""

    layers_mapping: Sequence[tuple[int, bool]]

    def set_kv_buffer(self, layer: AttentionLayer, loc: object, k: Tensor, v: Tensor) -> None: ...

    def get_key_buffer(self, layer_id: int) -> Tensor: ...

    def get_value_buffer(self, layer_id: int) -> Tensor: ...

    def translate_loc_from_full_to_swa(self, kv_indices: Tensor) -> Tensor: ...


class TorchBackend(Protocol):
    """SGLang's `TorchNativeAttnBackend`."""

    use_sliding_window_kv_pool: bool
    swa_out_cache_loc: Tensor
    token_to_kv_pool: WindowPool
    req_to_token_pool: RequestTable


class AttentionLayer(Protocol):
    """SGLang's `RadixAttention`."""

    layer_id: int
    qk_head_dim: int
    scaling: float
    sliding_window_size: int | None
    tp_q_head_num: int
    v_head_dim: int


class Picks(NamedTuple):
    """SGLang's `StandardTopKOutput`: the experts of each token, [tokens, top_k]."""

    topk_weights: Tensor
    topk_ids: Tensor


class Router(Protocol):
    """SGLang's `TopK`: it picks a layer's experts."""

    layer_id: int | None
    topk_config: RouterConfig


class RouterConfig(Protocol):
    """How a router picks."""

    allow_routed_experts_capture: bool


class HostCache(Protocol):
    """What a capturer keeps on the host, by KV slot."""

    name: str
    num_tokens: int
    buffer: Tensor


class DeviceCache(Protocol):
    """What a capturer keeps on the device."""

    buffer: Tensor


class Capturer(Protocol):
    """SGLang's capturer of experts."""

    host_cache: HostCache
    device_cache: DeviceCache
    topk_size: int

    def get_topk(
        self, req_pool_idx: int, seqlen: int, req_to_token_pool: RequestTable, start: int
    ) -> Tensor: ...


class Captured(Protocol):
    """The experts of one forward, [tokens, layers, top_k]."""

    host_cache: HostCache
    out_cache_loc: Tensor
    topk: Tensor

    def map_device_tensors(self, fn: Callable[[Tensor], Tensor]) -> None: ...

    def finalize(self) -> None: ...


class ExpertMap(Protocol):
    """SGLang's `ExpertLocationMetadata`: which expert is in which slot, by layer."""

    ep_size: int
    num_local_physical_experts: int
    num_logical_experts: int
    physical_to_logical_map: Tensor
    physical_to_logical_map_cpu: Tensor
    logical_to_all_physical_map: Tensor
    logical_to_all_physical_map_cpu: Tensor
    logical_to_all_physical_map_num_valid: Tensor
    logical_to_rank_dispatch_physical_map: Tensor | None


class ExpertRank(Protocol):
    """A rank's place among those that share the experts."""

    moe_ep_rank: int


class SamplingInfo(Protocol):
    """SGLang's `SamplingBatchInfo`: what the requests of a batch ask of their next token."""

    sampling_seed: Tensor | None
    top_ks: Tensor
    top_ps: Tensor
    min_ps: Tensor


class TokenScores(Protocol):
    """SGLang's `LogitsProcessorOutput`: what a forward says of the next tokens."""

    next_token_token_ids_logprobs_val: list[Tensor | list[float]] | None


class Penalizers(Protocol):
    """SGLang's `BatchedPenalizerOrchestrator`."""

    device: device

    def reqs(self) -> list[Req]: ...

    def cumulate_output_tokens(self, output_ids: Tensor) -> None: ...


class PenaltyState(Protocol):
    """Of a batch."""

    penalizer_orchestrator: Penalizers


class Penalizer(Protocol):
    """One of SGLang's penalties. Each kind has its own tensors, [requests, vocabulary]."""

    orchestrator: Penalizers
    frequency_penalties: Tensor
    cumulated_frequency_penalties: Tensor
    presence_penalties: Tensor
    cumulated_presence_penalties: Tensor
    repetition_penalties: Tensor
    cumulated_repetition_penalties: Tensor
    len_output_tokens: Tensor

    def is_prepared(self) -> bool: ...


class Group(Protocol):
    """SGLang's `GroupCoordinator`: ranks that talk to each other."""

    world_size: int
    rank_in_group: int

    def all_reduce(self, input_: Tensor) -> Tensor: ...
