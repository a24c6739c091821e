"""The embedded model in transformers, fp32, in this process: what workers are compared with."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from toolkit.embedded import model_path


class Reference:
    """Loads the model (a second); about 100 MB.

    On one thread: ranks that meet at a barrier keep their cores busy while they wait, and threads
    that then have to wait for one another are many times slower than one alone.
    """

    def __init__(self) -> None:
        import torch

        from patches.stubs import declare_torchvision_operators

        torch.set_num_threads(1)
        declare_torchvision_operators()
        from transformers import Qwen3MoeForCausalLM

        self._model = Qwen3MoeForCausalLM.from_pretrained(model_path(), dtype=torch.float32).eval()
        self._greedy: dict[tuple[int, ...], list[int]] = {}

    def add(self, name: str, change: Any) -> None:
        """Add a tensor to the weight of the module of this name."""
        import torch

        with torch.no_grad():
            self._model.get_submodule(name).weight += change

    def experts(self, ids: Sequence[int]) -> np.ndarray:
        """What each token is routed to: [tokens, layers, k], ascending in k."""
        import torch

        top_k = self._model.config.num_experts_per_tok
        with torch.no_grad():
            logits = self._model(torch.tensor([list(ids)]), output_router_logits=True).router_logits
        layers = [layer.topk(top_k, dim=-1).indices for layer in logits]
        return torch.stack(layers, dim=1).sort(dim=-1).values.numpy()

    def counts(self, ids: Sequence[int], layers: Sequence[int]) -> np.ndarray:
        """How many tokens each expert of these layers gets: [layers, experts]."""
        chosen, experts = self.experts(ids), self._model.config.num_experts
        return np.stack(
            [np.bincount(chosen[:, layer].ravel(), minlength=experts) for layer in layers]
        )

    def greedy(self, ids: Sequence[int], tokens: int) -> list[int]:
        """The most likely `tokens` tokens after `ids`, past any end of text."""
        import torch

        known = self._greedy.get(tuple(ids), [])
        if len(known) >= tokens:
            return known[:tokens]
        step, past, found = list(ids), None, []
        for _ in range(tokens):
            with torch.no_grad():
                out = self._model(torch.tensor([step]), past_key_values=past, use_cache=True)
            past, step = out.past_key_values, [int(out.logits[0, -1].argmax())]
            found += step
        self._greedy[tuple(ids)] = found
        return list(found)
