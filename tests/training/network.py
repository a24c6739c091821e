"""A compact trainable Qwen3MoE: the same mathematics as transformers', faster on one CPU core.

Tokens are sorted by expert and each expert's product runs once over its rows, forward and
backward. `export` writes the weights under Hugging Face's names; `evaluate.py --verify` holds the
result against transformers' own implementation.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 8192,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 48,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "router_aux_loss_coef": 0.001,
    "output_router_logits": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "use_cache": True,
    # SGLang 0.5.21 ignores tying in qwen3_moe, so lm_head is its own tensor.
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}
GENERATION_CONFIG = {"do_sample": False, "eos_token_id": [2, 0], "pad_token_id": 0}


class RMSNorm(nn.Module):  # type: ignore[misc]
    """Root-mean-square norm with a learned scale."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, CONFIG["rms_norm_eps"])


class ExpertMix(torch.autograd.Function):  # type: ignore[misc]
    """SwiGLU experts over rows sorted by expert; shapes: x [R, H], w13 [E, 2I, H], w2 [E, H, I]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w13: Tensor, w2: Tensor, counts: list[int]) -> Tensor:
        """Run every expert over its own rows."""
        gate_up = x.new_empty(x.shape[0], w13.shape[1])
        for part, out, weight in zip(x.split(counts), gate_up.split(counts), w13, strict=True):
            torch.mm(part, weight.t(), out=out)
        gate, up = gate_up.chunk(2, dim=1)
        hidden = F.silu(gate) * up
        y = torch.empty_like(x)
        for part, out, weight in zip(hidden.split(counts), y.split(counts), w2, strict=True):
            torch.mm(part, weight.t(), out=out)
        ctx.save_for_backward(x, w13, w2, gate_up, hidden)
        ctx.counts = counts
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of x, w13 and w2."""
        x, w13, w2, gate_up, hidden = ctx.saved_tensors
        counts: list[int] = ctx.counts
        dy = grads[0].contiguous()
        dw13, dw2 = torch.empty_like(w13), torch.empty_like(w2)
        dhidden = torch.empty_like(hidden)
        parts = zip(dy.split(counts), hidden.split(counts), dhidden.split(counts), strict=True)
        for e, (dy_e, hidden_e, dhidden_e) in enumerate(parts):
            torch.mm(dy_e.t(), hidden_e, out=dw2[e])
            torch.mm(dy_e, w2[e], out=dhidden_e)
        gate, up = gate_up.chunk(2, dim=1)
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        dgate = dhidden * up * (sigmoid + silu * (1 - sigmoid))
        dgate_up = torch.cat((dgate, dhidden * silu), dim=1)
        dx = torch.empty_like(x)
        parts = zip(dgate_up.split(counts), x.split(counts), dx.split(counts), strict=True)
        for e, (dgu_e, x_e, dx_e) in enumerate(parts):
            torch.mm(dgu_e.t(), x_e, out=dw13[e])
            torch.mm(dgu_e, w13[e], out=dx_e)
        return dx, dw13, dw2, None


class HeadLoss(torch.autograd.Function):  # type: ignore[misc]
    """Cross-entropy of `hidden @ weight.T`, chunk by chunk: whole logits would not fit the cache.

    Gradients come with the forward pass; a target of -1 does not count.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over the targets that count."""
        h, w = hidden.to(torch.bfloat16), weight.to(torch.bfloat16)
        dh, dw = torch.empty_like(hidden), torch.zeros_like(weight)
        total = hidden.new_zeros(())
        scale = 1.0 / max(1, int((targets >= 0).sum()))
        for start in range(0, h.shape[0], 512):
            part = slice(start, start + 512)
            kept = (targets[part] >= 0).float()[:, None]
            index = targets[part].clamp_min(0)[:, None]
            logits = torch.mm(h[part], w.t()).float()
            norm = logits.logsumexp(1, keepdim=True)
            total += ((norm - logits.gather(1, index)) * kept).sum()
            grad = logits.sub_(norm).exp_().scatter_add_(1, index, -torch.ones_like(norm))
            low = grad.mul_(kept * scale).to(torch.bfloat16)
            dh[part] = torch.mm(low, w)
            dw += torch.mm(low.t(), h[part])
        ctx.save_for_backward(dh, dw)
        return total * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients of hidden and weight."""
        dh, dw = ctx.saved_tensors
        return dh * grads[0], dw * grads[0], None


class Experts(nn.Module):  # type: ignore[misc]
    """The router and its experts; keeps the last routing for losses and measurements."""

    def __init__(self) -> None:
        super().__init__()
        hidden, inner = CONFIG["hidden_size"], CONFIG["moe_intermediate_size"]
        self.num, self.top_k = CONFIG["num_experts"], CONFIG["num_experts_per_tok"]
        self.gate = nn.Parameter(torch.randn(self.num, hidden) * 0.02)
        self.w13 = nn.Parameter(torch.randn(self.num, 2 * inner, hidden) * 0.02)
        self.w2 = nn.Parameter(torch.randn(self.num, hidden, inner) * 0.01)
        self.logits = self.ids = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the top-k experts of every token; x is [batch, time, hidden]."""
        flat = x.reshape(-1, x.shape[-1])
        # Routing decisions stay in fp32 even where the products run in bf16.
        with torch.autocast("cpu", enabled=False):
            self.logits = F.linear(flat.float(), self.gate)
        top, self.ids = self.logits.topk(self.top_k, dim=-1)
        # softmax over all, then top-k, then renormalise == softmax over the top-k.
        weights = top.softmax(dim=-1)
        slots = self.ids.reshape(-1)
        order = slots.argsort(stable=True)
        counts = torch.bincount(slots, minlength=self.num).tolist()
        rows = order // self.top_k
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        y = ExpertMix.apply(flat.to(dtype)[rows], self.w13.to(dtype), self.w2.to(dtype), counts)
        y = y.to(weights.dtype) * weights.reshape(-1)[order, None]
        return torch.zeros_like(flat).index_add(0, rows, y).view_as(x)


class Attention(nn.Module):  # type: ignore[misc]
    """Grouped-query attention with norms on queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        hidden, self.dim = CONFIG["hidden_size"], CONFIG["head_dim"]
        self.heads, self.kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
        self.q_proj = nn.Linear(hidden, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, hidden, bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.dim), RMSNorm(self.dim)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: list[Tensor] | None = None
    ) -> Tensor:
        """Causal attention; `past` (when given) holds keys and values and grows in place."""
        batch, time, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(batch, time, self.heads, self.dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, time, self.kv_heads, self.dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, time, self.kv_heads, self.dim).transpose(1, 2)
        q, k = (t * cos + torch.cat((-t[..., 32:], t[..., :32]), -1) * sin for t in (q, k))
        if past is not None:
            if past:
                k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
            past[:] = [k, v]
        repeat = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=time > 1)
        return self.o_proj(y.transpose(1, 2).reshape(batch, time, -1))


class Layer(nn.Module):  # type: ignore[misc]
    """One decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(CONFIG["hidden_size"])
        self.self_attn = Attention()
        self.post_attention_layernorm = RMSNorm(CONFIG["hidden_size"])
        self.mlp = Experts()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: list[Tensor] | None) -> Tensor:
        """Attention, then experts, both with a residual."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past)
        return x + self.mlp(self.post_attention_layernorm(x))


class Network(nn.Module):  # type: ignore[misc]
    """The whole model; input and output embeddings are separate tensors."""

    def __init__(self) -> None:
        super().__init__()
        vocab, hidden = CONFIG["vocab_size"], CONFIG["hidden_size"]
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = RMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        with torch.no_grad():
            self.lm_head.weight.copy_(self.embed_tokens.weight)
        dim = CONFIG["head_dim"]
        freq = CONFIG["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        angles = torch.outer(torch.arange(CONFIG["max_position_embeddings"]).float(), freq)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: Tensor, past: list[list[Tensor]] | None = None) -> Tensor:
        """Final hidden states [batch, time, hidden] of token ids [batch, time]."""
        start = past[0][0].shape[2] if past and past[0] else 0
        cos, sin = (t[start : start + ids.shape[1]] for t in (self.cos, self.sin))
        x = self.embed_tokens(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, None if past is None else past[i])
        return self.norm(x)

    def routed(self) -> Tensor:
        """Expert ids of the last call, [layers, tokens, top_k]."""
        return torch.stack([layer.mlp.ids for layer in self.layers])


def hugging_face_weights(network: Network) -> dict[str, Tensor]:
    """The weights in bf16 under the names of Qwen3MoeForCausalLM checkpoints."""
    weights: dict[str, Tensor] = {}
    for name, value in network.state_dict().items():
        tensor = value.detach().to(torch.bfloat16).contiguous()
        if name.endswith("mlp.gate"):
            weights[f"model.{name}.weight"] = tensor
        elif name.endswith("mlp.w13"):
            base = f"model.{name.removesuffix('w13')}experts"
            for e, (gate, up) in enumerate(t.chunk(2) for t in tensor):
                weights[f"{base}.{e}.gate_proj.weight"] = gate.contiguous()
                weights[f"{base}.{e}.up_proj.weight"] = up.contiguous()
        elif name.endswith("mlp.w2"):
            base = f"model.{name.removesuffix('w2')}experts"
            for e, down in enumerate(tensor):
                weights[f"{base}.{e}.down_proj.weight"] = down.contiguous()
        else:
            weights[name if name.startswith("lm_head") else f"model.{name}"] = tensor
    return weights


def export(network: Network, out: Path) -> None:
    """Write config and weights so that a reader sees either the old files or the new ones."""
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    for name, content in (("config.json", CONFIG), ("generation_config.json", GENERATION_CONFIG)):
        part = out / f".{name}.part"
        part.write_text(json.dumps(content, indent=2) + "\n")
        part.replace(out / name)
    part = out / ".model.safetensors.part"
    save_file(hugging_face_weights(network), part, metadata={"format": "pt"})
    part.chmod(0o644)
    part.replace(out / "model.safetensors")


def load(path: Path) -> Network:
    """Read an exported checkpoint back (in fp32)."""
    from safetensors.torch import load_file

    weights = load_file(path / "model.safetensors")
    network = Network()
    state = network.state_dict()
    with torch.no_grad():
        for name, value in state.items():
            experts = f"model.{name.rsplit('.', 1)[0]}.experts"
            if name.endswith("mlp.gate"):
                value.copy_(weights[f"model.{name}.weight"])
            elif name.endswith("mlp.w13"):
                for e in range(CONFIG["num_experts"]):
                    halves = [weights[f"{experts}.{e}.{p}_proj.weight"] for p in ("gate", "up")]
                    value[e].copy_(torch.cat(halves))
            elif name.endswith("mlp.w2"):
                for e in range(CONFIG["num_experts"]):
                    value[e].copy_(weights[f"{experts}.{e}.down_proj.weight"])
            else:
                value.copy_(weights[name if name.startswith("lm_head") else f"model.{name}"])
    return network
