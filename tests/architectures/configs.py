"""Configurations of tiny models, one for each architecture: the published file with small numbers.

Sizes are such that all that is special about an architecture is there in four layers: dense layers
before those with experts, shared experts, groups of experts, a sliding window that prompts exceed,
layers without rotary embedding, a state beside the KV.
"""

from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 8192
"""That of the embedded model's tokenizer."""


@dataclass(frozen=True)
class Architecture:
    """`config` is the contents of config.json; `moe_layers` are those that have experts, in the
    model's own numbering; `cpu_args` are what SGLang must be told beside what the launcher tells
    any worker on the CPU."""

    name: str
    config: dict[str, Any]
    moe_layers: tuple[int, ...]
    experts: int
    top_k: int
    cpu_args: dict[str, str] = field(default_factory=dict)

    @property
    def model_class(self) -> str:
        """As SGLang and transformers name it."""
        return str(self.config["architectures"][0])


_COMMON: dict[str, Any] = {
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 128,
    "max_position_embeddings": 8192,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": VOCABULARY,
}


def _config(model_class: str, model_type: str, **own: Any) -> dict[str, Any]:
    return {"architectures": [model_class], "model_type": model_type, **_COMMON, **own}


_QWEN3_MOE = _config(
    "Qwen3MoeForCausalLM",
    "qwen3_moe",
    attention_bias=False,
    decoder_sparse_step=1,
    head_dim=32,
    intermediate_size=256,
    mlp_only_layers=[],
    moe_intermediate_size=64,
    norm_topk_prob=True,
    num_experts=16,
    num_experts_per_tok=4,
    num_key_value_heads=2,
    rope_scaling=None,
    rope_theta=1000000,
    sliding_window=None,
)

_DEEPSEEK_V3 = _config(
    "DeepseekV3ForCausalLM",
    "deepseek_v3",
    attention_bias=False,
    ep_size=1,
    first_k_dense_replace=1,
    intermediate_size=256,
    kv_lora_rank=32,
    moe_intermediate_size=64,
    moe_layer_freq=1,
    n_group=4,
    n_routed_experts=16,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=4,
    num_key_value_heads=4,
    num_nextn_predict_layers=0,
    q_lora_rank=64,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    rope_scaling={
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    rope_theta=10000,
    routed_scaling_factor=2.5,
    scoring_func="sigmoid",
    topk_group=2,
    topk_method="noaux_tc",
    v_head_dim=32,
)

_GPT_OSS = _config(
    "GptOssForCausalLM",
    "gpt_oss",
    attention_bias=True,
    experts_per_token=4,
    head_dim=32,
    initial_context_length=4096,
    intermediate_size=64,
    layer_types=["sliding_attention", "full_attention"] * 2,
    num_experts_per_tok=4,
    num_key_value_heads=2,
    num_local_experts=16,
    rope_scaling={
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    rope_theta=150000,
    sliding_window=32,
    swiglu_limit=7.0,
)

_GLM4_MOE = _config(
    "Glm4MoeForCausalLM",
    "glm4_moe",
    attention_bias=True,
    first_k_dense_replace=1,
    head_dim=32,
    intermediate_size=256,
    moe_intermediate_size=64,
    n_group=1,
    n_routed_experts=16,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=4,
    num_key_value_heads=2,
    num_nextn_predict_layers=0,
    partial_rotary_factor=0.5,
    rope_scaling=None,
    rope_theta=1000000,
    routed_scaling_factor=2.5,
    topk_group=1,
    use_qk_norm=True,
)

_MIXTRAL = _config(
    "MixtralForCausalLM",
    "mixtral",
    intermediate_size=64,
    num_experts_per_tok=2,
    num_key_value_heads=2,
    num_local_experts=8,
    rope_theta=1000000.0,
    router_aux_loss_coef=0.02,
    sliding_window=None,
)

_QWEN3_NEXT = _config(
    "Qwen3NextForCausalLM",
    "qwen3_next",
    attention_bias=False,
    decoder_sparse_step=1,
    full_attention_interval=4,
    head_dim=32,
    intermediate_size=256,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_value_head_dim=32,
    mlp_only_layers=[],
    moe_intermediate_size=64,
    norm_topk_prob=True,
    num_experts=16,
    num_experts_per_tok=4,
    num_key_value_heads=2,
    partial_rotary_factor=0.25,
    rope_scaling=None,
    rope_theta=10000000,
    shared_expert_intermediate_size=64,
)

_LLAMA4 = _config(
    "Llama4ForCausalLM",
    "llama4_text",
    attention_bias=False,
    attention_chunk_size=8192,
    attn_scale=0.1,
    attn_temperature_tuning=True,
    floor_scale=8192,
    head_dim=32,
    interleave_moe_layer_step=2,
    intermediate_size=64,
    intermediate_size_mlp=256,
    num_experts_per_tok=1,
    num_key_value_heads=2,
    num_local_experts=8,
    rope_scaling=None,
    rope_theta=500000.0,
    use_qk_norm=True,
)

FALLS_BACK = {"attention-backend": "intel_amx"}
"""SGLang refuses `torch_native` by name for GPT-OSS (`srt/arg_groups/model_hook.py:497`), and goes
back to it where a CPU has no AMX. `patches.cpu.attention_sinks` adds what is missing there."""

ARCHITECTURES: dict[str, Architecture] = {
    each.name: each
    for each in (
        Architecture("qwen3-moe", _QWEN3_MOE, (0, 1, 2, 3), 16, 4),
        Architecture("deepseek-v3", _DEEPSEEK_V3, (1, 2, 3), 16, 4),
        Architecture("gpt-oss", _GPT_OSS, (0, 1, 2, 3), 16, 4, FALLS_BACK),
        Architecture("glm4-moe", _GLM4_MOE, (1, 2, 3), 16, 4),
        Architecture("mixtral", _MIXTRAL, (0, 1, 2, 3), 8, 2),
        Architecture("qwen3-next", _QWEN3_NEXT, (0, 1, 2, 3), 16, 4),
        Architecture("llama4", _LLAMA4, (1, 3), 8, 1),
    )
}
