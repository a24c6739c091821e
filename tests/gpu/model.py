"""A Qwen3MoE of random weights, of any size, with the embedded model's tokenizer; and drafts of it,
of which nothing is right or nearly all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.embedded import model_path

if TYPE_CHECKING:
    import torch

    from tests.gpu.context import Context

DEVIATION = 0.02
"""Of every weight, as such models are initialized; norms are 1."""
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Keys of config.json that make the size. Heads of Qwen3-30B-A3B are 32 and 4, of 128."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    max_position_embeddings: int

    @property
    def parameters(self) -> int:
        """Of the layers."""
        attention = self.hidden_size * self.head_dim
        attention *= 2 * (self.num_attention_heads + self.num_key_value_heads)
        experts = self.num_experts * (3 * self.moe_intermediate_size + 1) * self.hidden_size
        return self.num_hidden_layers * (attention + experts)


SCALED_UP = Size(8, 2048, 32, 4, 128, 128, 8, 768, 65_536)
"""Qwen3-30B-A3B with 8 of its 48 layers: 10 GB in bf16, of which a GPU of 80 GB holds four."""
TINY = Size(2, 64, 2, 1, 32, 16, 2, 32, 8192)


def scaled_up(context: Context) -> Path:
    """The folder of the model that the steps share, made if it is not there."""
    folder = context.scratch / ("tiny-moe" if context.tiny else "scaled-up-moe")
    make(folder, TINY if context.tiny else SCALED_UP, context.device)
    return folder


QUIET = 1e-3
"""Of what layers add, so that a token's successor hangs on that token alone."""


def quiet(context: Context) -> Path:
    """The same in size, and costs as much; a draft that has its embedding and head is right."""
    folder = context.scratch / ("tiny-quiet" if context.tiny else "scaled-up-quiet")
    make(folder, TINY if context.tiny else SCALED_UP, context.device, QUIET)
    return folder


def draft(context: Context, right: bool) -> Path:
    """An MTP layer for `quiet`: one that hands its token's embedding on, or one of random
    weights."""
    size = TINY if context.tiny else SCALED_UP
    folder = context.scratch / f"{'right' if right else 'random'}-draft"

    def layer(vocabulary: int) -> Iterator[dict[str, torch.Tensor]]:
        yield _mtp(size, right, context.device)

    write(folder, {**asdict(size), "right": right}, size, layer, context.device)
    return folder


def make(folder: Path, size: Size, device: str, added: float = 1.0) -> None:
    """Write the model; one that is there whole and of this size is left as it is. `added`: by how
    much less layers add to what goes through."""

    def drawn(vocabulary: int) -> Iterator[dict[str, torch.Tensor]]:
        return parts(size, vocabulary, device, added)

    write(folder, {**asdict(size), "added": added}, size, drawn, device)


def write(
    folder: Path,
    wanted: dict[str, Any],
    size: Size,
    made: Callable[[int], Iterator[dict[str, torch.Tensor]]],
    device: str,
) -> None:
    """A model of the parts that `made` gives for a vocabulary, one file each; nothing where what is
    there was made as `wanted` says."""
    marker = folder / "size.json"
    if marker.exists() and json.loads(marker.read_text()) == wanted:
        return
    from safetensors.torch import save_file

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = json.loads((model_path() / "config.json").read_text())
    config |= {**asdict(size), "intermediate_size": 4 * size.hidden_size}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for name in TOKENIZER:
        shutil.copyfile(model_path() / name, folder / name)
    where: dict[str, str] = {}
    vocabulary = int(config["vocab_size"])
    for number, part in enumerate(made(vocabulary)):
        file = f"model-{number:05d}.safetensors"
        save_file({name: tensor.cpu() for name, tensor in part.items()}, folder / file)
        where |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    marker.write_text(json.dumps(wanted))
    if device != "cpu":  # or the workers would not get the memory of this process's drafts
        import torch

        torch.get_device_module(device).empty_cache()


def _drawn(device: str) -> Callable[..., torch.Tensor]:
    import torch

    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        full = torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
        return full * DEVIATION

    return drawn


def _ones(count: int) -> torch.Tensor:
    import torch

    return torch.ones(count, dtype=torch.bfloat16)


def parts(
    size: Size, vocabulary: int, device: str, added: float
) -> Iterator[dict[str, torch.Tensor]]:
    """What stands outside of the layers, then each layer."""
    drawn, hidden = _drawn(device), size.hidden_size
    yield {
        "model.embed_tokens.weight": drawn(vocabulary, hidden),
        "lm_head.weight": drawn(vocabulary, hidden),
        "model.norm.weight": _ones(hidden),
    }
    for number in range(size.num_hidden_layers):
        yield _layer(size, f"model.layers.{number}", drawn, added)


def _layer(
    size: Size, layer: str, drawn: Callable[..., torch.Tensor], added: float
) -> dict[str, torch.Tensor]:
    hidden = size.hidden_size
    heads, kv = size.num_attention_heads * size.head_dim, size.num_key_value_heads * size.head_dim
    part = {
        f"{layer}.input_layernorm.weight": _ones(hidden),
        f"{layer}.post_attention_layernorm.weight": _ones(hidden),
        f"{layer}.self_attn.q_norm.weight": _ones(size.head_dim),
        f"{layer}.self_attn.k_norm.weight": _ones(size.head_dim),
        f"{layer}.self_attn.q_proj.weight": drawn(heads, hidden),
        f"{layer}.self_attn.k_proj.weight": drawn(kv, hidden),
        f"{layer}.self_attn.v_proj.weight": drawn(kv, hidden),
        f"{layer}.self_attn.o_proj.weight": drawn(hidden, heads) * added,
        f"{layer}.mlp.gate.weight": drawn(size.num_experts, hidden),
    }
    for expert in range(size.num_experts):
        own = f"{layer}.mlp.experts.{expert}"
        inner = size.moe_intermediate_size
        part[f"{own}.gate_proj.weight"] = drawn(inner, hidden)
        part[f"{own}.up_proj.weight"] = drawn(inner, hidden)
        part[f"{own}.down_proj.weight"] = drawn(hidden, inner) * added
    return part


def _mtp(size: Size, right: bool, device: str) -> dict[str, torch.Tensor]:
    """As SGLang's `Qwen3MoeForCausalLMMTP` has it: embedding beside hidden state, one layer."""
    import torch

    drawn, hidden = _drawn(device), size.hidden_size
    mixed = drawn(hidden, 2 * hidden)
    if right:
        mixed = torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], dim=1)
    return {
        "mtp.fc.weight": mixed.to(torch.bfloat16),
        "mtp.pre_fc_norm_embedding.weight": _ones(hidden),
        "mtp.pre_fc_norm_hidden.weight": _ones(hidden),
        "mtp.norm.weight": _ones(hidden),
        **_layer(size, "mtp.layers.0", drawn, QUIET if right else 1.0),
    }
