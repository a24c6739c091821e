"""What a worker is told: its flags, and its model's configuration."""

from __future__ import annotations

from typing import Protocol


class CudaGraph(Protocol):
    """How CUDA graphs of one kind are made."""

    backend: str


class CudaGraphs(Protocol):
    """Of prefill and decode."""

    prefill: CudaGraph


class ServerArgs(Protocol):
    """SGLang's `ServerArgs`: a worker's flags, as given or as resolved (`patches.flags`)."""

    cuda_graph_config: CudaGraphs | None
    device: str
    disaggregation_mode: str
    disaggregation_transfer_backend: str
    dp_size: int
    enable_deterministic_inference: bool
    enable_http2: bool
    enable_return_routed_experts: bool
    grpc_port: int | None
    kv_cache_dtype: str
    load_balance_method: str
    model_path: str
    num_reserved_decode_tokens: int
    optimistic_prefill_attempts: int
    page_size: int
    pp_size: int
    schedule_policy: str
    attention_backend: str | None
    speculative_algorithm: str | None
    speculative_num_draft_tokens: int | None
    ssl_certfile: str | None
    tokenizer_worker_num: int
    tp_size: int


class TextConfig(Protocol):
    """The language model's part of a Hugging Face configuration. How it names its experts depends
    on the model (`patches.experts.of_model`)."""

    num_hidden_layers: int


class ModelConfig(Protocol):
    """SGLang's `ModelConfig`."""

    context_len: int
    full_attention_layer_ids: list[int] | None
    hf_text_config: TextConfig
    hidden_size: int
    is_hybrid_swa: bool
    is_multimodal: bool
    vocab_size: int

    def get_total_num_kv_heads(self) -> int: ...
