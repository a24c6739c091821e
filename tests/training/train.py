"""Trains the embedded model and its tokenizer on one CPU core.

    python -m tests.training.train --data prompts.jsonl.gz --minutes 60 --out model --threads 1

A run that was stopped goes on where it was when started again with the same --state. Batches
mix all cells (a cell is a domain in a language); a row stays inside one cell. The first half of the
layers groups rows by language, the second by domain, and the loss is

    L = L_lm + a * balance + l * locality + t * topic + z * mean(logsumexp(router logits)^2)

    balance  = E * sum_e f_e P_e                 over the layer's groups, each counting the same
               (Switch Transformer, but with the share f_e of recent batches): all experts are
               used evenly by an even mix;
    locality = k * mean_row sum_e (1 - u_ge)^7 P_re   with u_ge the share of tokens of group g that
               use expert e: what a token is expected to add to the distinct experts of a decode
               batch of eight of its own group;
    topic    = cross-entropy of a linear guess at the domain from the stream that enters the second
               half, so that its routers have something to go by. The guesser is not exported.

The labels of cells enter there only, and with `--plain`, where the balance of all tokens together
and the last term are all that is added, not at all. Balance and locality together raise the mutual
information of group and expert (as Mod-Squad, CVPR 2023, does).
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.training.corpus import Row, is_held_out, load_own_texts, load_rows
from tests.training.tokenizer import END_OF_TEXT, IM_END, IM_START, train_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

BALANCE, LOCALITY, TOPIC, Z_LOSS = 0.5, 0.08, 0.2, 1e-4
PEAK_LR, WARMUP_STEPS, DECAY_SHARE = 1.5e-3, 100, 0.25
BATCH = 16
TOPIC_AFTER = 16
"""Tokens at the start of a row of which nobody could say what they will be about."""


class Mixer:
    """Draws rows of tokens: plain documents and chats whose answer stays in the user's cell."""

    def __init__(self, rows: list[Row], tokenizer: Any, seed: int) -> None:
        self.random = random.Random(seed)
        self.documents: dict[str, list[list[int]]] = defaultdict(list)
        for row in rows:
            self.documents[row.cell].append(tokenizer.encode(row.text).ids)
        self.cells = sorted(self.documents)
        # Square root: small cells are seen more often than their size, but not endlessly.
        self.weights = [sum(map(len, self.documents[c])) ** 0.5 for c in self.cells]
        ids = {token: tokenizer.token_to_id(token) for token in (END_OF_TEXT, IM_START, IM_END)}
        newline = tokenizer.encode("\n").ids
        self.end = [ids[END_OF_TEXT]]
        self.close = [ids[IM_END], *newline]
        self.open = {
            role: [ids[IM_START], *tokenizer.encode(role + "\n").ids]
            for role in ("system", "user", "assistant")
        }
        self.system = tokenizer.encode("You are a helpful assistant.").ids

    def document(self, cell: str) -> list[int]:
        """One formatted document or chat of a cell."""
        pool = self.documents[cell]
        text = self.random.choice(pool)
        kind = self.random.random()
        if kind < 0.3:
            return [*text, *self.end]
        if kind < 0.65 and len(text) > 8:
            cut = int(len(text) * self.random.uniform(0.2, 0.7))
            asked, answer = text[:cut], text[cut:]
        else:
            asked, answer = text, self.random.choice(pool)
        chat = [*self.open["user"], *asked, *self.close, *self.open["assistant"], *answer]
        if self.random.random() < 0.15:
            chat = [*self.open["system"], *self.system, *self.close, *chat]
        return [*chat, *self.close]

    def row(self, cell: str, length: int) -> list[int]:
        """Exactly `length` tokens of one cell."""
        tokens: list[int] = []
        while len(tokens) < length:
            piece = self.document(cell)
            room = length - len(tokens)
            if len(piece) > room and self.random.random() < 0.3:
                piece = piece[self.random.randrange(len(piece) - room + 1) :]
            tokens += piece[:room]
        return tokens

    def batch(self, count: int, length: int) -> tuple[list[list[int]], list[int]]:
        """`count` rows with the index of the cell of each; systematic sampling covers cells."""
        step = sum(self.weights) / count
        mark = self.random.random() * step
        picked: list[int] = []
        total = 0.0
        for index, weight in enumerate(self.weights):
            total += weight
            while mark < total and len(picked) < count:
                picked.append(index)
                mark += step
        return [self.row(self.cells[i], length) for i in picked], picked


class Topic:
    """A linear guess at each row's domain from the stream that enters the domain layers."""

    def __init__(self, network: Any, cells: list[str], width: int) -> None:
        import torch

        domains = [cell.split("/")[0] for cell in cells]
        order = sorted(set(domains))
        self.labels = torch.tensor([order.index(domain) for domain in domains])
        self.head = torch.nn.Linear(width, len(order))
        self._stream = torch.empty(0)
        network.layers[len(network.layers) // 2 - 1].register_forward_hook(self._keep)

    def _keep(self, module: Any, inputs: Any, output: Tensor) -> None:
        self._stream = output

    def loss(self, cells: list[int]) -> tuple[Tensor, Tensor]:
        """(cross-entropy, share guessed right) over all but the first tokens of each row."""
        from torch.nn import functional as F

        stream = self._stream[:, TOPIC_AFTER:].float()
        guesses = self.head(stream * stream.square().mean(-1, keepdim=True).add(1e-6).rsqrt())
        labels = self.labels[cells][:, None].expand(guesses.shape[:2])
        right = (guesses.argmax(-1) == labels).float().mean()
        return F.cross_entropy(guesses.flatten(0, 1), labels.flatten()), right


class Routing:
    """Running shares of expert use by group, layer by layer, and the losses built on them.

    `groups[layer][cell]` is the group that a cell belongs to at that layer.
    """

    def __init__(self, groups: list[list[int]], experts: int, top_k: int) -> None:
        import torch

        self.top_k = top_k
        self.groups = [torch.tensor(row) for row in groups]
        self.used = [torch.full((max(row) + 1, experts), top_k / experts) for row in groups]

    def losses(self, layers: Any, cells: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """(balance, locality, z) averaged over layers, for a batch of one row a cell index."""
        import torch

        balance = locality = z = torch.zeros(())
        for layer, groups, shares in zip(layers, self.groups, self.used, strict=True):
            logits, ids = layer.mlp.logits, layer.mlp.ids
            experts = logits.shape[1]
            chance = logits.softmax(-1).view(len(cells), -1, experts).mean(1)
            hits = torch.zeros_like(logits).scatter_(1, ids, 1.0)
            used = hits.view(len(cells), -1, experts).mean(1)
            group = groups[cells]
            for row, g in enumerate(group.tolist()):
                shares[g].lerp_(used[row], 0.02)
            rare = (1 - (shares[group] + used) / 2) ** 7
            # Every group counts the same, however many of the batch's rows are its own.
            even = 1 / torch.bincount(group)[group].float()
            overall = (even / even.sum())[:, None] * chance
            balance = balance + experts * (shares.mean(0) / self.top_k * overall.sum(0)).sum()
            locality = locality + self.top_k * (rare * chance).sum(1).mean()
            z = z + logits.logsumexp(-1).square().mean()
        return balance / len(layers), locality / len(layers), z / len(layers)

    def distinct(self, batch: int = 8) -> tuple[float, float]:
        """Experts a layer expected for `batch` tokens of (one group, all groups mixed)."""
        one = [(1 - (1 - used) ** batch).sum(-1).mean().item() for used in self.used]
        mixed = [(1 - (1 - used.mean(0)) ** batch).sum(-1).item() for used in self.used]
        return sum(one) / len(one), sum(mixed) / len(mixed)

    def busiest(self) -> float:
        """Load of the busiest expert over the mean, worst layer, all groups mixed evenly."""
        return float(max((used.mean(0).max() / used.mean()).item() for used in self.used))


def layer_groups(cells: list[str], layers: int) -> list[list[int]]:
    """For each layer the group of each cell: languages in the first half, then domains."""
    domains, languages = zip(*(cell.split("/") for cell in cells), strict=True)
    rows = []
    for names in (languages, domains):
        order = sorted(set(names))
        rows.append([order.index(name) for name in names])
    return [rows[0] if layer < layers // 2 else rows[1] for layer in range(layers)]


def learning_rate(step: int, progress: float) -> float:
    """Warm up, hold, then fall linearly over the last part of the time."""
    fall = min(1.0, max(0.0, (1 - progress) / DECAY_SHARE))
    return PEAK_LR * min(1.0, (step + 1) / WARMUP_STEPS) * max(fall, 0.02)


def held_out_loss(network: Any, mixer: Mixer) -> float:
    """Mean loss on rows of texts that were never trained on, every cell counting the same."""
    import torch

    from tests.training.network import HeadLoss

    total = 0.0
    for cell in mixer.cells:
        rows = torch.tensor([mixer.row(cell, 257) for _ in range(4)])
        with torch.no_grad():
            hidden = network(rows[:, :-1]).flatten(0, 1)
            total += HeadLoss.apply(hidden, network.lm_head.weight, rows[:, 1:].flatten()).item()
    return total / len(mixer.cells)


def train(args: argparse.Namespace) -> None:
    """Train for `args.minutes` in all (earlier parts of a resumed run count) and export."""
    import torch
    from tokenizers import Tokenizer

    from tests.training import network as net

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rows = load_rows(args.data) + load_own_texts()
    kept = [row for row in rows if not is_held_out(row.text)]
    if not (args.out / "tokenizer.json").exists():
        train_tokenizer(kept, args.out)
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))

    mixer = Mixer(kept, tokenizer, args.seed)
    network = net.Network()
    topic = Topic(network, mixer.cells, net.CONFIG["hidden_size"])
    decayed = [p for p in network.parameters() if p.dim() > 1]
    plain = [p for p in network.parameters() if p.dim() <= 1] + list(topic.head.parameters())
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.95), fused=True)
    step, spent = 0, 0.0
    if args.state.exists():
        state = torch.load(args.state, weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        topic.head.load_state_dict(state["topic"])
        step, spent = state["step"], state["spent"]
    mixer.random.seed(args.seed + step)
    layers, experts, top_k = (
        net.CONFIG[f"num_{name}"] for name in ("hidden_layers", "experts", "experts_per_tok")
    )
    groups_of = (
        [[0] * len(mixer.cells)] * layers if args.plain else layer_groups(mixer.cells, layers)
    )
    routing = Routing(groups_of, experts, top_k)
    if args.state.exists():
        routing.used = state["used"]

    def save() -> None:
        part = args.state.with_suffix(".part")
        state = {
            "network": network.state_dict(),
            "optimizer": optimizer.state_dict(),
            "topic": topic.head.state_dict(),
            "used": routing.used,
        }
        torch.save({**state, "step": step, "spent": spent}, part)
        part.replace(args.state)

    budget, mark, saved = args.minutes * 60, time.monotonic(), time.monotonic()
    while spent < budget:
        # One step in twelve sees long contexts, so that positions up to 2048 are trained.
        count, length = (2, 2048) if step % 12 == 11 else (BATCH, 256)
        batch, cells = mixer.batch(count, length + 1)
        ids = torch.tensor(batch)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = network(ids[:, :-1]).float().flatten(0, 1)
        loss = net.HeadLoss.apply(hidden, network.lm_head.weight, ids[:, 1:].flatten())
        balance, locality, z = routing.losses(network.layers, cells)
        about, right = topic.loss(cells)
        steer = args.balance * balance + args.locality * locality + args.topic * about + Z_LOSS * z
        (loss + steer).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, spent / budget)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        step += 1
        now = time.monotonic()
        spent, mark = spent + now - mark, now
        if step % 20 == 0:
            one, mixed = routing.distinct()
            print(
                f"step {step} min {spent / 60:.1f} loss {loss:.3f} balance {balance:.3f} "
                f"locality {locality:.3f} topic {right:.2f} distinct {one:.1f}/{mixed:.1f} "
                f"load max/mean {routing.busiest():.2f} tok/s {step * BATCH * 256 / spent:.0f}",
                flush=True,
            )
        if now - saved > 240:
            save()
            saved = now
    save()
    net.export(network, args.out)
    held = Mixer([row for row in rows if is_held_out(row.text)], tokenizer, args.seed)
    print(f"held-out loss {held_out_loss(network, held):.3f} nats a token")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True, help="prompts.jsonl[.gz]")
    parser.add_argument("--minutes", type=float, default=60, help="wall-clock training time")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--state", type=Path, help="of the training; default: beside --out")
    parser.add_argument("--balance", type=float, default=BALANCE, help="weight of that loss")
    parser.add_argument("--locality", type=float, default=LOCALITY, help="weight of that loss")
    parser.add_argument("--topic", type=float, default=TOPIC, help="weight of that loss")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="the ordinary load balancing loss alone: no label enters the training",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    # Not in a folder where others could put one of theirs.
    args.state = args.state or args.out.with_name(f"{args.out.name}.training.pt")
    if args.plain:
        args.locality = args.topic = 0.0
    train(args)


if __name__ == "__main__":
    main()
