"""Model fingerprints."""

import json
from pathlib import Path

import pytest

from toolkit.fingerprint import model_fingerprint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8, "_name_or_path": "a"}))
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 4096)
    return tmp_path


def test_equal_models_have_equal_fingerprints(model: Path) -> None:
    first = model_fingerprint(model)
    (model / "config.json").write_text(json.dumps({"_name_or_path": "b", "hidden_size": 8}))
    assert model_fingerprint(model) == first
    assert first.startswith("sha256:")


def test_other_config_other_fingerprint(model: Path) -> None:
    first = model_fingerprint(model)
    (model / "config.json").write_text(json.dumps({"hidden_size": 9}))
    assert model_fingerprint(model) != first


@pytest.mark.parametrize("at", [0, 1, 31, 63])
def test_other_weights_other_fingerprint(model: Path, at: int) -> None:
    first = model_fingerprint(model)
    weights = bytearray((model / "model.safetensors").read_bytes())
    start = at * (len(weights) // 64)
    weights[start : start + 64] = bytes(64)
    (model / "model.safetensors").write_bytes(weights)
    assert model_fingerprint(model) != first


def test_no_model_no_fingerprint(tmp_path: Path) -> None:
    assert model_fingerprint(tmp_path) == ""


def test_a_broken_config_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError):
        model_fingerprint(tmp_path)
