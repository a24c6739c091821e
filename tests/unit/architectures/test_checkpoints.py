"""Tiny models: the same seed writes the same weights, and transformers reads what was written."""

from pathlib import Path

import numpy as np
import pytest

from tests.architectures import checkpoints
from tests.architectures.configs import ARCHITECTURES
from tests.architectures.reference import Reference

pytestmark = pytest.mark.slow
PROMPTS = ([300, 301, 302, 1000, 2000], [4000, 301, 17, 1000])


@pytest.mark.parametrize("name", ["mixtral", "deepseek-v3", "llama4"])
def test_a_model_is_its_seed_and_its_router_is_heard(name: str, tmp_path: Path) -> None:
    of = ARCHITECTURES[name]
    files = [
        checkpoints.write(of, tmp_path / str(number), seed) / "model.safetensors"
        for number, seed in enumerate((22, 22, 23))
    ]
    first, again, other = (file.read_bytes() for file in files)
    assert first == again and first != other
    reference = Reference(of, files[0].parent)
    said = [reference.greedy(prompt, 4) for prompt in PROMPTS]
    assert said[0] != said[1]
    for prompt in PROMPTS:
        picked = reference.experts(prompt)
        assert picked.shape == (len(prompt), len(of.moe_layers), of.top_k)
        assert picked.min() >= 0 and picked.max() < of.experts
        assert (np.diff(picked, axis=2) > 0).all()  # no expert twice
        assert reference.counts(prompt).sum() == picked.size
