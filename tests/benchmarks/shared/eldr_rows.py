"""Requests whose experts are known, for simulated ELDR: some to fit to, others to be served."""

import gzip
import json
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.shared.eldr_rounds import say
from toolkit.profile_folder import store
from toolkit.resources import profiles_dir

MOST = 320
"""Prompts of a workload to fit to, and as many to be served: 13 for each of 24 decode workers."""
LEAST = 10
"""Distinct prompts that a centroid is fitted to, or it says nothing of any others."""


@dataclass(frozen=True)
class Rows:
    """N requests: how often a token used each expert in `prefill` and `decode` [N, L, E] (a share
    of its tokens), `labels` of each (domain, language, domain/language), and whether it is
    `served`, in place of fitted to."""

    prefill: np.ndarray
    decode: np.ndarray
    labels: tuple[tuple[str, ...], ...]
    served: np.ndarray

    def of(self, kind: str, served: bool) -> list[int]:
        """Rows of a label."""
        return [
            row
            for row, labels in enumerate(self.labels)
            if kind in labels and bool(self.served[row]) is served
        ]

    def drawn(self, kinds: Mapping[str, float], served: bool, count: int) -> list[int]:
        """`count` rows of these kinds, by their shares; each once before any comes twice."""
        source = random.Random(f"drawn-{served}")
        found: list[int] = []
        for kind, share in kinds.items():
            mine = self.of(kind, served)
            wanted = round(count * share)
            if not mine:
                raise ValueError(f"no prompt of {kind} to {'serve' if served else 'fit to'}")
            while wanted > 0:
                part = source.sample(mine, min(wanted, len(mine)))
                found += part
                wanted -= len(part)
        return found


def of_profile() -> Rows:
    """The embedded model's profile: what it was fitted to, and what it held out."""
    profile, arrays = store.read(profiles_dir() / "embedded")
    shape = (-1, 1, 1)
    return Rows(
        arrays["prefill_counts"] / arrays["prompt_tokens"].clip(1).reshape(shape),
        arrays["decode_counts"] / arrays["output_tokens"].clip(1).reshape(shape),
        tuple((r.domain, r.language, f"{r.domain}/{r.language}") for r in profile.requests),
        arrays["held_out"].astype(bool),
    )


@dataclass(frozen=True)
class Prompt:
    """One of a file."""

    text: str
    domain: str
    language: str
    seen: bool
    """Whether the embedded model was trained on it."""

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.domain, self.language, f"{self.domain}/{self.language}")


def read(path: Path) -> list[Prompt]:
    """JSON lines of `text`, `domain`, `language` and, where the embedded model may have been
    trained on it, `source`; gzip or not."""
    from tests.training.corpus import ALLOWED, is_held_out

    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    texts = {row["text"]: row for row in rows if row["domain"] != "sentence"}
    return [
        Prompt(
            text,
            row["domain"],
            row["language"],
            row.get("source") in ALLOWED and not is_held_out(text),
        )
        for text, row in texts.items()
    ]


def chosen(
    prompts: Iterable[Prompt], workloads: Iterable[Mapping[str, float]], most: int
) -> list[tuple[Prompt, bool]]:
    """Which to fit to and which to serve (True), enough for `most` of each and every workload.

    Only prompts that training has not seen are served, half of those at most. The others of a kind
    are fitted to, first what training has not seen either.
    """
    source = random.Random("chosen")
    shuffled = sorted(prompts, key=lambda prompt: prompt.text)
    source.shuffle(shuffled)
    shuffled.sort(key=lambda prompt: prompt.seen)
    found: dict[str, tuple[Prompt, bool]] = {}
    served: dict[str, bool] = {}
    for count, prompt in enumerate(each for each in shuffled if not each.seen):
        served[prompt.text] = count % 2 == 0
    for kinds in workloads:
        for kind, share in kinds.items():
            for serve in (False, True):
                mine = [
                    p for p in shuffled if kind in p.labels and served.get(p.text, False) is serve
                ]
                for prompt in mine[: round(most * share)]:
                    found[prompt.text] = (prompt, serve)
    return list(found.values())


def captured(prompts: Sequence[tuple[Prompt, bool]]) -> Rows:
    """Prefilled by the embedded model as chats and continued by 48 sampled tokens each, as
    `tests.training.evaluate` does it."""
    import torch
    from tokenizers import Tokenizer

    from tests.training.evaluate import trace
    from tests.training.network import load
    from toolkit.embedded.prompts import OwnPrompt, model_path

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = load(model_path())
    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    top_k = json.loads((model_path() / "config.json").read_text())["num_experts_per_tok"]
    prefill, decode = [], []
    begin = time.monotonic()
    with torch.no_grad():
        for number, (prompt, _) in enumerate(prompts, 1):
            asked = OwnPrompt("", prompt.domain, prompt.language, prompt.text)
            found = trace(network, tokenizer, asked)
            tokens = found.prefill[0].sum() / top_k
            prefill.append(found.prefill / tokens)
            decode.append(found.decode.mean(axis=0))
            if number % 200 == 0:
                say(f"{number}/{len(prompts)} prompts, {time.monotonic() - begin:.0f} s")
    labels = tuple(prompt.labels for prompt, _ in prompts)
    served = np.array([serve for _, serve in prompts])
    return Rows(np.stack(prefill), np.stack(decode), labels, served)


def of_file(
    path: Path, workloads: Sequence[Mapping[str, float]], most: int, cache: Path | None = None
) -> Rows:
    """Those of a file of prompts, captured; read from `cache` where that was written before."""
    if cache is not None and cache.exists():
        with np.load(cache) as kept:
            labels = tuple(tuple(row) for row in kept["labels"].tolist())
            return Rows(kept["prefill"], kept["decode"], labels, kept["served"])
    rows = captured(chosen(read(path), workloads, most))
    if cache is not None:
        kinds: Any = np.array(rows.labels)
        np.savez_compressed(
            cache, prefill=rows.prefill, decode=rows.decode, labels=kinds, served=rows.served
        )
    return rows
