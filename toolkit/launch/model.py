"""What the checks need to know about a model, read from its folder without loading it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.bounded_files import read_json
from toolkit.launch.errors import LaunchError, Problem
from toolkit.settings.deployment import Deployment

ALL_MOE = ("mixtral", "gpt_oss", "olmoe", "minimax_m2")
"""Model types of which every layer has experts, without a word of it in the config."""
STATE = (
    "linear_num_value_heads", "linear_attn_config", "mamba_d_state", "mamba_num_heads", "ssm_cfg",
)  # fmt: skip
"""Keys that only configurations of linear attention have: Qwen3-Next, Kimi Linear, Mamba."""
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


@dataclass(frozen=True)
class ModelFacts:
    """A model folder. `check_path` is where config.json lies (a stand-in while weights are away);
    bytes are those of the weight files as stored (`weight_item` bytes a parameter)."""

    path: str
    check_path: str
    served_name: str
    config: dict[str, Any]
    weights_here: bool
    weight_bytes: int

    @property
    def is_mla(self) -> bool:
        """Multi-head latent attention: KV is one latent row, equal on every TP rank."""
        return bool(self._text.get("kv_lora_rank"))

    @property
    def model_class(self) -> str:
        """As SGLang names it; `model_type` where the config does not tell."""
        named = self.config.get("architectures") or [self.config.get("model_type", "this model")]
        return str(named[0])

    @property
    def keeps_state(self) -> bool:
        """Whether layers of linear attention keep a state of a request beside the KV of its tokens
        (Qwen3-Next, Qwen3.5, Mamba hybrids)."""
        text = self._text
        kinds = text.get("layer_types") or text.get("layers_block_type") or ()
        return any(kind in ("linear_attention", "mamba") for kind in kinds) or any(
            text.get(key) for key in STATE
        )

    @property
    def weight_item(self) -> int:
        """Bytes a stored parameter takes, by the config's dtype."""
        dtype = str(self.config.get("dtype") or self.config.get("torch_dtype") or "bfloat16")
        return 4 if "float32" in dtype else 2

    @property
    def _text(self) -> dict[str, Any]:
        """The language model's part of a config that describes several."""
        part = self.config.get("text_config")
        return part if isinstance(part, dict) else self.config

    @property
    def experts(self) -> int | None:
        """Routed experts of a MoE layer; None where the config does not tell."""
        # As `patches.experts.of_model` finds them in the worker.
        names = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
        return next((int(self._text[name]) for name in names if self._text.get(name)), None)

    @property
    def top_k(self) -> int | None:
        """Experts of a token; None where the config does not tell."""
        found = self._text.get("num_experts_per_tok")
        return int(found) if found else None

    @property
    def layers(self) -> int | None:
        """How many it has; None where the config does not tell."""
        found = self._text.get("num_hidden_layers")
        return int(found) if found else None

    @property
    def moe_layers(self) -> int | None:
        """How many layers have experts; None for a config that says it in a way unknown here."""
        text = self._text
        count = int(text.get("num_hidden_layers", 0))
        if text.get("decoder_sparse_step"):  # Qwen2 and Qwen3 MoE
            step, dense = int(text["decoder_sparse_step"]), text.get("mlp_only_layers") or ()
            return sum((i + 1) % step == 0 and i not in dense for i in range(count))
        if "first_k_dense_replace" in text:  # DeepSeek V2, V3 and those after it
            first, step = text["first_k_dense_replace"] or 0, text.get("moe_layer_freq") or 1
            if isinstance(step, int):
                return sum(i >= first and i % step == 0 for i in range(count))
        if every := text.get("interleave_moe_layer_step"):  # Llama 4
            return sum((i + 1) % int(every) == 0 for i in range(count))
        if text.get("model_type") in ALL_MOE:
            return count
        return None

    @property
    def expert_bytes(self) -> float | None:
        """Of one expert of one layer, its three matrices; None where the config does not tell."""
        text = self._text
        hidden = text.get("hidden_size")
        inner = text.get("moe_intermediate_size") or text.get("intermediate_size")
        if not hidden or not inner or self.experts is None:
            return None
        quantised = self.config.get("quantization_config") or {}
        fp8 = quantised.get("quant_method") == "fp8"
        bits = 8 if fp8 else int(quantised.get("bits") or 8 * self.weight_item)
        return 3 * int(hidden) * int(inner) * bits / 8

    def kv_bytes_on_gpu(self, item: int, tp: int) -> float:
        """KV bytes of one token on one of the `tp` GPUs of a rank's attention."""
        heads = self._text.get("num_key_value_heads") or self._text.get("num_attention_heads") or 1
        split = 1 if self.is_mla else min(tp, int(heads))
        return self.kv_bytes_per_token(item) / split

    def kv_bytes_per_token(self, item: int) -> int:
        """KV bytes of one token over all layers and heads, `item` bytes a number."""
        text = self._text
        layers = int(text.get("num_hidden_layers", 0))
        if self.is_mla:
            row = text["kv_lora_rank"] + text.get("qk_rope_head_dim", 0)
            return layers * int(row) * item
        heads = int(text.get("num_attention_heads", 1))
        kv_heads = int(text.get("num_key_value_heads") or heads)
        head_dim = int(text.get("head_dim") or int(text.get("hidden_size", 0)) // max(heads, 1))
        return 2 * layers * kv_heads * head_dim * item


def read_model(deployment: Deployment) -> ModelFacts:
    """Find the model. Raises LaunchError when neither weights nor a stand-in config is there."""
    model = deployment.model
    if model.path == "embedded":
        path, name = _embedded(), "embedded"
    else:
        path = from_folder(deployment, model.path)
        name = model.path.rstrip("/").rsplit("/", 1)[-1]
    check = path
    if model.config and not (path / "config.json").is_file():
        check = from_folder(deployment, model.config)
    try:
        config = read_json(check / "config.json")
    except (OSError, ValueError) as error:
        what = f"no usable config.json in {check}" + (
            f" ({error})" if isinstance(error, ValueError) else ""
        )
        repair = (
            "set model.path to a model folder (or model.config to a folder with its config.json)"
        )
        raise LaunchError([Problem("model", what, repair)]) from error
    files = [f for pattern in WEIGHTS for f in path.glob(pattern)] if path.is_dir() else []
    return ModelFacts(
        path=str(path) if path.is_dir() else model.path,
        check_path=str(check),
        served_name=model.served_name or name,
        config=config,
        weights_here=bool(files),
        weight_bytes=sum(f.stat().st_size for f in files),
    )


def _embedded() -> Path:
    from toolkit import embedded

    return Path(embedded.model_path())


def draft_path(deployment: Deployment, draft: str) -> Path:
    """The folder of a draft's weights; `embedded`: the draft of the embedded model."""
    from toolkit import embedded

    return embedded.draft_path() if draft == "embedded" else from_folder(deployment, draft)


def from_folder(deployment: Deployment, text: str) -> Path:
    """A path of the deployment file: relative ones start at the file's folder."""
    path = Path(text).expanduser()
    return path if path.is_absolute() else deployment.folder / path
