"""The config.json files beside the recipes are those of their makers, as NVIDIA copied them."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.resources import recipes_dir

MAKERS = {
    "deepseek-v3": "deepseek-ai--DeepSeek-V3",
    "gpt-oss-120b": "openai--gpt-oss-120b",
    "qwen3-235b-a22b-fp8": "Qwen--Qwen3-235B-A22B-FP8",
    "qwen3-30b-a3b": "Qwen--Qwen3-30B-A3B",
}
NOT_COPIED = {"qwen3-next-80b-a3b"}
"""NVIDIA has none of it."""
NOT_OF_THE_MODEL = {"transformers_version", "auto_map"}
"""Who wrote the file, and code that SGLang does not run."""


def copied(name: str) -> dict[str, Any]:
    """The file of aiconfigurator-core; read, not imported: an import brings its engine along."""
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or found.origin is None:
        pytest.skip("optional: pip install .[aic]")
    path = Path(found.origin).parent / "model_configs" / f"{MAKERS[name]}_config.json"
    return dict(json.loads(path.read_text()))


@pytest.mark.parametrize("name", MAKERS)
def test_it_is_the_makers(name: str) -> None:
    ours = dict(json.loads((recipes_dir() / "configs" / name / "config.json").read_text()))
    theirs = {k: v for k, v in copied(name).items() if k not in NOT_OF_THE_MODEL}
    if name == "gpt-oss-120b":
        # SGLang refuses MXFP4 without a GPU, where a dry run of the recipe has none; and SGLang
        # asks for the type.
        assert theirs.pop("quantization_config")["quant_method"] == "mxfp4"
        assert ours.pop("torch_dtype") == "bfloat16"
    if name == "qwen3-235b-a22b-fp8":
        whole = theirs["quantization_config"].pop("modules_to_not_convert")
        assert all(".mlp.gate" in each or "norm" in each or each == "lm_head" for each in whole)
    assert ours == theirs


def test_qwen3_next_is_what_transformers_makes_of_no_config() -> None:
    """Its class has the sizes of this model where nobody says any; three were changed since."""
    from transformers import Qwen3NextConfig

    ours = json.loads((recipes_dir() / "configs/qwen3-next-80b-a3b/config.json").read_text())
    made = Qwen3NextConfig().to_dict()
    other = {name for name, value in ours.items() if name in made and made[name] != value}
    said = {"architectures", "bos_token_id", "eos_token_id", "torch_dtype", "rope_scaling"}
    assert other - said <= {"intermediate_size", "max_position_embeddings", "rope_theta"}
    sizes = {name for name in made if name.startswith(("num_", "linear_", "moe_", "hidden_size"))}
    assert sizes and sizes <= ours.keys()


def test_every_config_is_compared() -> None:
    found = {path.name for path in (recipes_dir() / "configs").iterdir()}
    assert found == MAKERS.keys() | NOT_COPIED
