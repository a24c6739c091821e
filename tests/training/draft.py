"""Trains the embedded model's draft, an MTP layer, on the CPU.

    python -m tests.training.draft --data prompts.jsonl.gz --minutes 12 --out toolkit/embedded/draft

One decoder layer behind a linear one that joins a token's embedding with the target's hidden state
of the token before it (DeepSeek-V3's MTP; SGLang loads it as `Qwen3MoeForCausalLMMTP`). Embedding
and head are the target's. What it learns is the target's own next token (its argmax): half of a
step's rows are texts that the target was trained on, half what the target generates from them.

It drafts DEPTH tokens in a chain, and is trained so: at a chain's step s it sees the keys of the
target's hidden states up to the chain's beginning, then those of the s tokens that it drafted, and
takes its own last hidden state for the target's. The tokens of the chain are the target's while it
is trained.

`--evaluate` says how many tokens a verification yields (1 to DEPTH + 1) on the project's prompts,
which neither was trained on: greedy answers of 96 tokens, every place of them once.
"""

import argparse
import json
import math
import random
import shutil
import time
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.training.corpus import is_held_out, load_own_texts, load_rows
from tests.training.network import CONFIG, Layer, Network, RMSNorm, load
from tests.training.train import Mixer
from toolkit.embedded import load_prompts, model_path

DEPTH = 3
FADE = 0.7
"""What a chain's next step counts."""
ROWS, LENGTH, PROMPT = 8, 224, 96
PEAK_LR, WARM_UP = 2e-3, 20
ANSWER = 96

KeysValues = tuple[Tensor, Tensor]


class Draft(nn.Module):  # type: ignore[misc]
    """The MTP layer; its names are those of SGLang's checkpoints behind `mtp.`."""

    def __init__(self, target: Network) -> None:
        super().__init__()
        hidden = CONFIG["hidden_size"]
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = RMSNorm(hidden), RMSNorm(hidden)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layer, self.norm = Layer(), RMSNorm(hidden)
        self.layer.load_state_dict(target.layers[-1].state_dict())
        self.norm.load_state_dict(target.norm.state_dict())
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat((torch.eye(hidden), torch.eye(hidden)), 1) * 0.7)

    def forward(
        self,
        embedded: Tensor,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        before: list[KeysValues],
    ) -> tuple[Tensor, KeysValues]:
        """Hidden states [batch, time, hidden] behind a chain's next token, and its keys and values.

        `embedded` and `hidden` are that token's embedding and the hidden state of the one before;
        `before` has the keys and values of the chain's steps so far, that of the target's hidden
        states first: entry i sees those of all entries up to i in the first and its own in others.
        """
        joined = (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden))
        x = self.fc(torch.cat(joined, -1))
        seen, own = self._attention(self.layer.input_layernorm(x), cos, sin, before)
        x = x + seen
        return self.norm(x + self.layer.mlp(self.layer.post_attention_layernorm(x))), own

    def _attention(
        self, x: Tensor, cos: Tensor, sin: Tensor, before: list[KeysValues]
    ) -> tuple[Tensor, KeysValues]:
        attention = self.layer.self_attn
        batch, length, _ = x.shape

        def heads(projection: nn.Linear, norm: nn.Module | None, count: int) -> Tensor:
            split = projection(x).view(batch, length, count, attention.dim)
            if norm is None:
                return cast("Tensor", split.transpose(1, 2))
            turned = norm(split).transpose(1, 2)
            half = attention.dim // 2
            swapped = torch.cat((-turned[..., half:], turned[..., :half]), -1)
            return cast("Tensor", turned * cos + swapped * sin)

        q = heads(attention.q_proj, attention.q_norm, attention.heads)
        repeat = attention.heads // attention.kv_heads
        k, v = (
            heads(projection, norm, attention.kv_heads).repeat_interleave(repeat, 1)
            for projection, norm in (
                (attention.k_proj, attention.k_norm),
                (attention.v_proj, None),
            )
        )
        every = [*before, (k, v)]
        first_keys, first_values = (t[:, :, :length] for t in every[0])
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = [(q @ first_keys.transpose(2, 3)).masked_fill(later, -math.inf)]
        scores += [(q * keys[:, :, :length]).sum(-1, keepdim=True) for keys, _ in every[1:]]
        weights = (torch.cat(scores, -1) * attention.dim**-0.5).softmax(-1)
        y = weights[..., :length] @ first_values
        for number, (_, values) in enumerate(every[1:]):
            y = y + weights[..., length + number, None] * values[:, :, :length]
        return attention.o_proj(y.transpose(1, 2).reshape(batch, length, -1)), (k, v)


def chain(draft: Draft, target: Network, ids: Tensor, hidden: Tensor) -> list[Tensor]:
    """The draft's hidden states at each step of the chains that begin at every place of `ids`
    [batch, time]; `hidden` are the target's. Step s, entry i: behind token i + s, for i + s + 1."""
    found, before = [], list[KeysValues]()
    for step in range(1, DEPTH + 1):
        length = ids.shape[1] - step
        places = slice(step - 1, step - 1 + length)
        hidden, own = draft(
            target.embed_tokens(ids[:, step:]),
            hidden[:, :length],
            *(target.cos[places], target.sin[places]),
            before,
        )
        found.append(hidden)
        before.append(own)
    return found


def answered(target: Network, ids: Tensor, count: int) -> Tensor:
    """`ids` [batch, time] with `count` greedy tokens behind each row."""
    past: list[list[Tensor]] = [[] for _ in target.layers]
    token = ids
    with torch.no_grad():
        for _ in range(count):
            token = target.lm_head(target(token, past)[:, -1:]).argmax(-1)
            ids = torch.cat((ids, token), 1)
    return ids


def labels_of(target: Network, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The target's hidden states of `ids` and its argmax behind each."""
    with torch.no_grad():
        hidden = target(ids)
        return hidden, target.lm_head(hidden).argmax(-1)


def train(options: argparse.Namespace, target: Network, tokenizer: Any) -> Draft:
    """For `options.minutes` by the clock."""
    rows = [row for row in load_rows(options.data) + load_own_texts() if not is_held_out(row.text)]
    mixer = Mixer(rows, tokenizer, options.seed)
    draft = Draft(target)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=PEAK_LR, weight_decay=0.01)
    began, step = time.monotonic(), 0
    while (done := (time.monotonic() - began) / (options.minutes * 60)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * min(1.0, (step + 1) / WARM_UP) * max(1 - done, 0.02)
        if step % 2:
            ids = torch.tensor(mixer.batch(ROWS, LENGTH)[0])
        else:
            prompts = torch.tensor(mixer.batch(ROWS, PROMPT)[0])
            ids = answered(target, prompts, LENGTH - PROMPT)
        hidden, labels = labels_of(target, ids)
        loss, hits = torch.zeros(()), []
        # A prompt is not what will be drafted.
        first = 0 if step % 2 else PROMPT
        for number, states in enumerate(chain(draft, target, ids, hidden), 1):
            begin = max(0, first - number)
            logits, wanted = target.lm_head(states[:, begin:]), labels[:, begin + number :]
            loss = loss + FADE ** (number - 1) * F.cross_entropy(
                logits.flatten(0, 1), wanted.flatten()
            )
            hits.append((logits.argmax(-1) == wanted).float().mean().item())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            said = " ".join(f"{hit:.2f}" for hit in hits)
            print(
                f"step {step} min {done * options.minutes:.1f} loss {loss:.2f} {said}", flush=True
            )
        step += 1
    return draft


def weights_of(draft: Draft) -> dict[str, Tensor]:
    """In bf16 under the names of SGLang's checkpoints."""
    weights = {}
    for name, value in draft.state_dict().items():
        tensor = value.detach().to(torch.bfloat16).contiguous()
        name = f"mtp.{name.replace('layer.', 'layers.0.', 1)}"
        base = f"{name.rpartition('.')[0]}.experts"
        if name.endswith("mlp.gate"):
            weights[f"{name}.weight"] = tensor
        elif name.endswith("mlp.w13"):
            for e, (gate, up) in enumerate(t.chunk(2) for t in tensor):
                weights[f"{base}.{e}.gate_proj.weight"] = gate.contiguous()
                weights[f"{base}.{e}.up_proj.weight"] = up.contiguous()
        elif name.endswith("mlp.w2"):
            for e, down in enumerate(tensor):
                weights[f"{base}.{e}.down_proj.weight"] = down.contiguous()
        else:
            weights[name] = tensor
    return weights


def export(draft: Draft, out: Path) -> None:
    """Write the checkpoint: weights, and the target's configuration and tokenizer."""
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(model_path() / name, out / name)
    part = out / ".model.safetensors.part"
    save_file(weights_of(draft), part, metadata={"format": "pt"})
    part.chmod(0o644)
    part.replace(out / "model.safetensors")


def load_draft(path: Path, target: Network) -> Draft:
    """Read an exported one back (in fp32)."""
    from safetensors.torch import load_file

    weights = load_file(path / "model.safetensors")
    draft = Draft(target)
    experts = "mtp.layers.0.mlp.experts"
    with torch.no_grad():
        for name, value in draft.state_dict().items():
            if name.endswith("mlp.w13"):
                for e in range(CONFIG["num_experts"]):
                    halves = [weights[f"{experts}.{e}.{p}_proj.weight"] for p in ("gate", "up")]
                    value[e].copy_(torch.cat(halves))
            elif name.endswith("mlp.w2"):
                for e in range(CONFIG["num_experts"]):
                    value[e].copy_(weights[f"{experts}.{e}.down_proj.weight"])
            else:
                exported = f"mtp.{name.replace('layer.', 'layers.0.', 1)}"
                exported += ".weight" if name.endswith("mlp.gate") else ""
                value.copy_(weights[exported])
    return draft


def yields(draft: Draft, target: Network, ids: Tensor, prompt: int) -> list[int]:
    """Tokens that a verification yields at every place of one row's answer, which begins at
    `prompt`: one more than the draft's tokens that are the target's."""
    hidden, labels = labels_of(target, ids)
    accepted = torch.ones(ids.shape[1] - DEPTH, dtype=torch.bool)
    found = torch.ones(len(accepted), dtype=torch.long)
    with torch.no_grad():
        for number, states in enumerate(chain(draft, target, ids, hidden), 1):
            right = target.lm_head(states)[0].argmax(-1) == labels[0, number:]
            accepted = accepted & right[: len(accepted)]
            found += accepted
    return [int(each) for each in found[prompt - 1 :]]


def evaluate(draft: Draft, target: Network, tokenizer: Any, count: int) -> dict[str, float]:
    """Mean yield on `count` of the project's prompts as chats, in all and by language."""
    prompts = [p for p in load_prompts() if "-long-" not in p.id]
    of: dict[str, list[int]] = {}
    for prompt in random.Random(0).sample(prompts, min(count, len(prompts))):
        chat = f"<|im_start|>user\n{prompt.text}<|im_end|>\n<|im_start|>assistant\n"
        ids = torch.tensor([tokenizer.encode(chat).ids])
        said = answered(target, ids, ANSWER)
        of.setdefault(prompt.language, []).extend(yields(draft, target, said, ids.shape[1]))
    every = [each for found in of.values() for each in found]
    means = {"all": every, **of}
    return {name: sum(found) / len(found) for name, found in sorted(means.items())}


def main() -> None:
    """Command line."""
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", type=Path, help="prompts.jsonl[.gz], to train")
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--out", type=Path, required=True, help="folder of the draft")
    parser.add_argument("--evaluate", action="store_true", help="what is in --out, untrained")
    parser.add_argument("--prompts", type=int, default=200, help="to evaluate on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    target = load(model_path()).eval().requires_grad_(False)
    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    if options.evaluate:
        draft = load_draft(options.out, target)
    else:
        draft = train(options, target, tokenizer)
        export(draft, options.out)
    print(json.dumps(evaluate(draft, target, tokenizer, options.prompts)))


if __name__ == "__main__":
    main()
