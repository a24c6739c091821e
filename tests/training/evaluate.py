"""Measures the embedded model: loss, routing by content, agreement with transformers, step time.

    python -m tests.training.evaluate [--data prompts.jsonl.gz] [--verify] [--time]

Prompts are the project's own, never trained on. Each is prefilled as a chat and continued by
sampled tokens; batches are then made of what the requests routed, step by step. With --data the
same is done for held-out rows too.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.training.corpus import is_held_out, load_own_texts, load_rows
from toolkit.embedded.prompts import OwnPrompt, load_prompts, model_path

if TYPE_CHECKING:
    import numpy as np

STEPS, BATCH, TRIALS = 48, 8, 100


@dataclass(frozen=True)
class Trace:
    """What one request routed: counts[layers, experts] in prefill, hit[steps, layers, experts]."""

    domain: str
    language: str
    loss: float
    prefill: np.ndarray
    decode: np.ndarray


def trace(network: Any, tokenizer: Any, prompt: OwnPrompt) -> Trace:
    """Prefill one prompt as a chat, then sample STEPS tokens (temperature 0.8)."""
    import torch
    from torch.nn import functional as F

    chat = f"<|im_start|>user\n{prompt.text}<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([tokenizer.encode(chat).ids])
    past: list[list[Any]] = [[] for _ in network.layers]
    experts = network.layers[0].mlp.num
    hidden = network(ids, past)
    loss = F.cross_entropy(network.lm_head(hidden[0, :-1]), ids[0, 1:]).item()
    prefill = F.one_hot(network.routed(), experts).sum((1, 2)).numpy()
    decode = []
    for _ in range(STEPS):
        logits = network.lm_head(hidden[:, -1]) / 0.8
        logits[:, :9] = -torch.inf  # no end of turn: every request decodes equally long
        hidden = network(torch.multinomial(logits.softmax(-1), 1), past)
        decode.append(F.one_hot(network.routed()[:, 0], experts).sum(1))
    return Trace(prompt.domain, prompt.language, loss, prefill, torch.stack(decode).bool().numpy())


def distinct(groups: list[list[Trace]], seed: int = 0) -> tuple[float, list[float]]:
    """Mean distinct experts a layer and step in batches of BATCH drawn inside a group, by layer."""
    import numpy as np

    rng = random.Random(seed)
    groups = [group for group in groups if len(group) >= BATCH]
    means = []
    for _ in range(TRIALS if len(groups) == 1 else -(-TRIALS // len(groups))):
        for group in groups:
            batch = np.stack([t.decode for t in rng.sample(group, BATCH)])
            means.append(batch.any(axis=0).sum(axis=-1).mean(axis=0))
    by_layer = np.mean(means, axis=0)
    return float(by_layer.mean()), [round(float(x), 1) for x in by_layer]


def rho(traces: list[Trace], layers: list[int]) -> float:
    """Spearman correlation of signature distance and decode-use distance over all pairs."""
    import numpy as np
    from scipy.spatial.distance import pdist
    from scipy.stats import spearmanr

    counts = np.stack([t.prefill for t in traces])[:, layers]
    weights = np.log((len(traces) + 1) / ((counts > 0).sum(axis=0) + 1))
    signatures = (counts * weights).reshape(len(traces), -1)
    use = np.stack([t.decode.mean(axis=0) for t in traces]).reshape(len(traces), -1)
    return float(spearmanr(pdist(signatures, "cosine"), pdist(use, "cosine")).statistic)


def report(title: str, traces: list[Trace]) -> None:
    """Print every routing figure of a set of traced requests."""
    import numpy as np

    cells, domains, languages = (defaultdict(list) for _ in range(3))
    for t in traces:
        cells[t.domain, t.language].append(t)
        domains[t.domain].append(t)
        languages[t.language].append(t)
    mixed, mixed_layers = distinct([traces])
    print(f"\n{title}: {len(traces)} requests, loss {np.mean([t.loss for t in traces]):.2f}")
    print(f"distinct experts, batch of {BATCH}, mean of layers: mixed {mixed:.1f} {mixed_layers}")
    for name, groups in (("cell", cells), ("domain", domains), ("language", languages)):
        value, layers = distinct(list(groups.values()))
        print(f"  one {name:8} {value:.1f} ({value / mixed - 1:+.0%}) {layers}")
    for name, groups in (("domain", domains), ("language", languages), ("cell", cells)):
        parts = [
            f"{k if name != 'cell' else '/'.join(k)} {distinct([g])[0]:.1f}"
            for k, g in groups.items()
            if len(g) >= BATCH
        ]
        print(f"  by {name}: {', '.join(parts)}")
    for name, load in (
        ("prefill", np.sum([t.prefill for t in traces], axis=0)),
        ("decode", np.sum([t.decode.sum(axis=0) for t in traces], axis=0)),
    ):
        ratio = load.max(axis=1) / load.mean(axis=1)
        idle = int((load == 0).sum())
        print(f"load max/mean by layer, {name}: {ratio.round(2).tolist()}, never used: {idle}")
    pairs = [(t.prefill.ravel(), t.decode.sum(axis=0).ravel()) for t in traces]
    each = np.mean([np.corrcoef(p, d)[0, 1] for p, d in pairs])
    whole = np.corrcoef(sum(p for p, _ in pairs), sum(d for _, d in pairs))[0, 1]
    print(f"prefill/decode count correlation: {each:.2f} per request, {whole:.2f} over the set")
    every = list(range(traces[0].prefill.shape[0]))
    kept: list[int] = []
    best = -1.0
    while len(kept) < len(every):
        value, layer = max((rho(traces, [*kept, i]), i) for i in every if i not in kept)
        if value <= best:
            break
        best, kept = value, [*kept, layer]
    print(f"rho: {rho(traces, every):.2f} with all layers, {best:.2f} with layers {sorted(kept)}")


def verify(path: Path) -> None:
    """Print the largest difference of logits from transformers' implementation, in fp32."""
    import torch
    from tokenizers import Tokenizer

    from patches.stubs import declare_torchvision_operators
    from tests.training.network import load

    declare_torchvision_operators()
    from transformers import Qwen3MoeForCausalLM

    theirs = Qwen3MoeForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ours, tokenizer = load(path), Tokenizer.from_file(str(path / "tokenizer.json"))
    worst, agree, total = 0.0, 0, 0
    with torch.no_grad():
        for prompt in load_prompts()[::8]:
            ids = torch.tensor([tokenizer.encode(prompt.text).ids])
            a, b = theirs(ids).logits, ours.lm_head(ours(ids))
            worst = max(worst, (a - b).abs().max().item())
            agree += int((a.argmax(-1) == b.argmax(-1)).sum())
            total += ids.numel()
    print(f"\nagainst transformers (fp32): max abs diff {worst:.1e}, argmax {agree}/{total} equal")


def step_time(path: Path) -> None:
    """Time SGLang's moe_forward_native with this model's sizes over controlled distinct counts."""
    from types import SimpleNamespace

    import numpy as np
    import torch

    from patches.stubs import declare_torchvision_operators
    from tests.training.network import load

    declare_torchvision_operators()
    from sglang.srt.layers.moe.fused_moe_native import moe_forward_native

    mlp = load(path).layers[0].mlp
    layer = SimpleNamespace(num_experts=mlp.num, w13_weight=mlp.w13.data, w2_weight=mlp.w2.data)
    config = SimpleNamespace(
        apply_router_weight_on_input=False, activation="silu", gemm1_alpha=None
    )
    x, weights = torch.randn(BATCH, mlp.w13.shape[2]), torch.full((BATCH, mlp.top_k), 0.25)
    slots = torch.arange(BATCH * mlp.top_k).view(BATCH, mlp.top_k)
    times: dict[int, list[float]] = {n: [] for n in (4, 8, 12, 16, 20, 24, 28, 32)}
    with torch.no_grad():
        for _ in range(300):  # interleaved, so that other load on the machine hits all alike
            for count, spent in times.items():
                start = time.perf_counter()
                moe_forward_native(layer, x, (weights, slots % count, None), config)
                spent.append(time.perf_counter() - start)
    medians = {count: float(np.median(spent[20:])) * 1e6 for count, spent in times.items()}
    slope, base = np.polyfit(list(medians), list(medians.values()), 1)
    print(f"\nmoe_forward_native, {BATCH} tokens, us a layer by distinct experts:")
    print("  " + ", ".join(f"{count}: {value:.0f}" for count, value in medians.items()))
    print(f"  fit: {base:.0f} us + {slope:.1f} us per distinct expert")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure the embedded model.")
    parser.add_argument("--model", type=Path, default=model_path())
    parser.add_argument("--data", type=Path, help="training data; its held-out rows are traced")
    parser.add_argument("--rows", type=int, default=160, help="held-out rows to trace")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--verify", action="store_true", help="compare with transformers")
    parser.add_argument("--time", action="store_true", help="time SGLang's native MoE only")
    args = parser.parse_args()
    import torch
    from tokenizers import Tokenizer

    from tests.training.network import load

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.time:
        step_time(args.model)
        return
    network = load(args.model)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    # The long prompts repeat the short ones: in one batch they would share more than they should.
    sets = {"own prompts": [p for p in load_prompts() if "-long-" not in p.id]}
    if args.data:
        every = load_rows(args.data) + load_own_texts()
        held = [row for row in every if is_held_out(row.text)]
        random.Random(0).shuffle(held)
        rows = [OwnPrompt("", r.domain, r.language, r.text) for r in held[: args.rows]]
        sets["held-out rows of the data"] = rows
    with torch.no_grad():
        for title, prompts in sets.items():
            report(title, [trace(network, tokenizer, prompt) for prompt in prompts])
    if args.verify:
        verify(args.model)


if __name__ == "__main__":
    main()
