"""Experts whose input is weighted: the token is multiplied, and the output is left as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from patches.cpu.input_weights import _weigh_the_input

torch = pytest.importorskip("torch")


@dataclass
class Config:
    apply_router_weight_on_input: bool


class TopK(NamedTuple):
    topk_weights: Any
    topk_ids: Any


def experts(layer: Any, x: Any, topk: TopK, config: Config) -> Any:
    """Expert e squares its input and adds e; as SGLang, it cannot weigh the input itself."""
    assert not config.apply_router_weight_on_input
    return ((x * x + topk.topk_ids) * topk.topk_weights.sum(dim=1, keepdim=True)).float()


X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
ONE = TopK(torch.tensor([[0.5], [0.25]]), torch.tensor([[1], [0]]))


def test_the_input_is_weighed() -> None:
    found = _weigh_the_input(experts, None, X, ONE, Config(True))
    assert found.equal(torch.tensor([[1.25, 2.0], [0.5625, 1.0]]))


def test_others_weigh_the_output() -> None:
    found = _weigh_the_input(experts, None, X, ONE, Config(False))
    assert found.equal(torch.tensor([[1.0, 2.5], [2.25, 4.0]]))


def test_several_experts_a_token_are_refused() -> None:
    two = TopK(torch.ones(2, 2), torch.zeros(2, 2))
    with pytest.raises(NotImplementedError, match="device: cuda"):
        _weigh_the_input(experts, None, X, two, Config(True))
