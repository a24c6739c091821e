"""Routers without a layer number get that of their name; who cannot is refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from patches.base import PatchError
from patches.experts.layer_numbers import give_numbers, number_of


def router(number: int | None = None, capture: bool = True) -> Any:
    config = SimpleNamespace(allow_routed_experts_capture=capture)
    return SimpleNamespace(layer_id=number, topk_config=config)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("model.layers.3.block_sparse_moe.topk", 3),
        ("language_model.model.layers.17.feed_forward.topk", 17),
        ("transformer.blocks.0.ffn.topk", 0),
        ("layers.42", 42),
    ],
)
def test_the_number_is_the_name_s_first(name: str, number: int) -> None:
    assert number_of(name) == number


def test_a_name_without_one_is_refused() -> None:
    with pytest.raises(PatchError, match=r"no layer number in model.moe2.topk.*router.profile"):
        number_of("model.moe2.topk")


def test_only_those_without_get_one() -> None:
    one, two, three = router(), router(5), router()
    modules = [("m.layers.1.topk", one), ("m.layers.2.topk", two), ("m.layers.3.topk", three)]
    assert give_numbers(modules) == 2
    assert [each.layer_id for each in (one, two, three)] == [1, 5, 3]


def test_two_of_one_layer_are_refused_and_a_draft_s_does_not_count() -> None:
    text, images = router(), router()
    both = [("m.layers.1.text.topk", text), ("m.layers.1.images.topk", images)]
    with pytest.raises(
        PatchError, match=r"layer 1 has several .*text.topk, m.layers.1.images.topk"
    ):
        give_numbers(both)
    assert text.layer_id is None
    assert give_numbers([both[0], ("m.layers.1.draft.topk", router(1, capture=False))]) == 1
