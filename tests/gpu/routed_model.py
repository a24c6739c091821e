"""A model of random weights whose tokens use the experts that they are told to, and follow each
other as they are told.

Layers add so little (`tests.gpu.model.QUIET`) that what each of them sees is its token's embedding.
So the router's weights of a layer are the least ones that give a token's experts the logit `SURE`
and all others 0, and the head's row of a token is the embedding of the one before it. Nothing in
SGLang is changed: its own router chooses, and costs what it costs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.gpu.model import QUIET, Size, parts, write

if TYPE_CHECKING:
    import torch

    from tests.gpu.routing import Routing

SURE = 6.0
FIRST = 300
"""The first token of the first row; what is below are special ones."""


def token(routing: Routing, row: int, place: int) -> int:
    """Of a row, at that place of its answer."""
    return FIRST + row * routing.tokens + place % routing.tokens


def make(folder: Path, size: Size, routing: Routing, device: str) -> None:
    """Write the model; one that is there with this routing is left as it is. ValueError: more
    tokens than can have experts of their own in so few dimensions."""
    count = routing.ids.shape[0] * routing.tokens
    if count > 0.75 * size.hidden_size:
        raise ValueError(
            f"{count} tokens with experts of their own in {size.hidden_size} dimensions"
        )
    told = hashlib.sha256(np.ascontiguousarray(routing.ids).tobytes()).hexdigest()

    def routed(vocabulary: int) -> Iterator[dict[str, torch.Tensor]]:
        gates = None
        for part in parts(size, vocabulary, device, QUIET):
            if "model.embed_tokens.weight" in part:
                embedding = part["model.embed_tokens.weight"]
                part["lm_head.weight"] = _head(embedding, part["lm_head.weight"], routing)
                gates = _gates(embedding, routing)
            for name in [name for name in part if name.endswith("mlp.gate.weight")]:
                assert gates is not None
                part[name] = next(gates)
            yield part

    write(folder, {**asdict(size), "routing": told}, size, routed, device)


def _head(embedding: torch.Tensor, head: torch.Tensor, routing: Routing) -> torch.Tensor:
    """[vocabulary, hidden]: what follows a token has its embedding, all others nothing."""
    import torch

    head = torch.zeros_like(head)
    for row in range(routing.ids.shape[0]):
        own = [token(routing, row, place) for place in range(routing.tokens)]
        head[own[1:] + own[:1]] = embedding[own]
    return head


def _gates(embedding: torch.Tensor, routing: Routing) -> Iterator[torch.Tensor]:
    """Of each layer [experts, hidden], from what its norm makes of the embeddings."""
    import torch

    rows, tokens, layers, _ = routing.ids.shape
    seen = embedding[FIRST : FIRST + rows * tokens].double()
    seen = seen / seen.square().mean(dim=1, keepdim=True).sqrt()
    least = torch.linalg.pinv(seen)  # [hidden, tokens]
    for layer in range(layers):
        ids = torch.as_tensor(routing.ids[:, :, layer].astype(np.int64), device=seen.device)
        wanted = torch.zeros(rows * tokens, routing.experts, dtype=seen.dtype, device=seen.device)
        wanted.scatter_(1, ids.reshape(rows * tokens, -1), SURE)
        yield (least @ wanted).T.to(embedding.dtype).contiguous()
