"""A tiny model in transformers, fp32: what it says, and which experts its own router picks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.architectures.checkpoints import model_class
from tests.architectures.configs import Architecture


class Reference:
    """Loads the checkpoint in `folder` as written, through transformers' own loader.

    On one thread: workers beside it need the cores.
    """

    def __init__(self, architecture: Architecture, folder: Path) -> None:
        import torch

        torch.set_num_threads(1)
        self._of = architecture
        kind = model_class(architecture)
        self._model = kind.from_pretrained(folder, dtype=torch.float32).eval()
        self._picked: list[Any] = []
        for number in architecture.moe_layers:
            self._listen(self._model.model.layers[number])

    def _listen(self, layer: Any) -> None:
        block: Any = getattr(layer, "mlp", None) or layer.feed_forward
        if hasattr(block, "router") and self._of.top_k == 1:  # Llama 4 gives its experts all tokens
            block.router.register_forward_hook(
                lambda _module, _given, out: self._picked.append(out[1].topk(1, dim=-1).indices)
            )
            return
        block.experts.register_forward_pre_hook(
            lambda _module, given: self._picked.append(given[1])
        )

    def experts(self, ids: Sequence[int]) -> np.ndarray:
        """What each token is routed to: [tokens, layers with experts, k], ascending in k."""
        import torch

        self._picked.clear()
        with torch.no_grad():
            self._model(torch.tensor([list(ids)]), use_cache=False)
        picked = torch.stack([each.reshape(len(ids), -1) for each in self._picked], dim=1)
        assert picked.shape[1:] == (len(self._of.moe_layers), self._of.top_k), picked.shape
        return picked.sort(dim=-1).values.numpy()

    def counts(self, ids: Sequence[int]) -> np.ndarray:
        """How many tokens each expert gets: [layers with experts, experts]."""
        chosen, experts = self.experts(ids), self._of.experts
        rows = [
            np.bincount(chosen[:, n].ravel(), minlength=experts) for n in range(chosen.shape[1])
        ]
        return np.stack(rows)

    def greedy(self, ids: Sequence[int], tokens: int) -> list[int]:
        """The most likely `tokens` tokens after `ids`, past any end of text."""
        import torch

        known = list(ids)
        for _ in range(tokens):
            with torch.no_grad():
                logits = self._model(torch.tensor([known]), use_cache=False).logits
            known.append(int(logits[0, -1].argmax()))
        return known[len(ids) :]
