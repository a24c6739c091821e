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

    def greedy(self, ids: Sequence[int], tokens: int, said: Sequence[int] = ()) -> list[int]:
        """The most likely `tokens` tokens after `ids`, past any end of text.

        `said`: what somebody says they are. One pass over it tells how many of its first tokens are
        right, in place of a pass for each token (0.08 s in place of 3.7 s for 200); the others are
        found one by one.
        """
        known = self._greedy.get(tuple(ids), [])
        if len(known) < tokens and said:
            known = self._checked(ids, said[:tokens])
        if len(known) < tokens:
            known = [*known, *self._one_by_one([*ids, *known], tokens - len(known))]
        self._greedy[tuple(ids)] = known
        return known[:tokens]

    def greedy_each(
        self, prompts: Sequence[Sequence[int]], tokens: int, said: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """`greedy` of each prompt, with what was said after it."""
        return [self.greedy(ids, tokens, its) for ids, its in zip(prompts, said, strict=True)]

    def log_probabilities(self, ids: Sequence[int], said: Sequence[int]) -> list[float]:
        """Of each token of `said`, which comes after `ids`."""
        import torch

        with torch.no_grad():
            out = self._model(torch.tensor([[*ids, *said]]), logits_to_keep=len(said) + 1)
        rows = out.logits[0, :-1].log_softmax(dim=-1)
        return [float(row[token]) for row, token in zip(rows, said, strict=True)]

    def _checked(self, ids: Sequence[int], said: Sequence[int]) -> list[int]:
        """The first tokens of `said` that are right, and the right one in place of the next."""
        import torch

        with torch.no_grad():
            out = self._model(torch.tensor([[*ids, *said]]), logits_to_keep=len(said) + 1)
        found: list[int] = out.logits[0].argmax(dim=-1).tolist()
        right = next((n for n, (a, b) in enumerate(zip(found, said, strict=False)) if a != b), None)
        return found[: len(said) if right is None else right + 1]

    def _one_by_one(self, ids: Sequence[int], tokens: int) -> list[int]:
        import torch

        step, past, found = list(ids), None, []
        for _ in range(tokens):
            with torch.no_grad():
                out = self._model(
                    torch.tensor([step]), past_key_values=past, use_cache=True, logits_to_keep=1
                )
            past, step = out.past_key_values, [int(out.logits[0, -1].argmax())]
            found += step
        return found
