"""What the toolkit reads in the configurations that users' models have."""

from types import SimpleNamespace

import pytest

from patches.experts.of_model import expert_count
from tests.architectures.configs import ARCHITECTURES, Architecture
from toolkit.launch.model import ModelFacts


def facts(config: dict[str, object]) -> ModelFacts:
    return ModelFacts("m", "m", "m", config, False, 0)


@pytest.mark.parametrize("of", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "text part"])
def test_experts_and_layers_are_read(of: Architecture, nested: bool) -> None:
    config = {"model_type": "several", "text_config": of.config} if nested else of.config
    found = facts(config)  # type: ignore[arg-type]
    assert (found.experts, found.top_k, found.layers) == (of.experts, of.top_k, 4)
    assert found.moe_layers == len(of.moe_layers)
    assert expert_count(SimpleNamespace(**of.config)) == of.experts
    assert found.is_mla == (of.name == "deepseek-v3")
    assert found.keeps_state == (of.name == "qwen3-next")
    row = 32 + 16 if found.is_mla else 2 * 2 * 32
    assert found.kv_bytes_per_token(4) == 4 * row * 4
