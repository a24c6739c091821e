"""Profiles of other models and deployments are refused, with what differs."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.profile import sample
from toolkit.cli.main import app
from toolkit.profile_folder import check
from toolkit.profile_folder.errors import ProfileError
from toolkit.resources import profiles_dir

PROFILE, _ = sample.build(sample.Size(requests=60))
FITTING: dict[str, Any] = {
    "fingerprint": PROFILE.model.fingerprint, "layers": 6, "experts": 48, "top_k": 4,
    "decode_workers": 4, "sglang": "0.5.21",
}  # fmt: skip


def test_fits() -> None:
    assert check.problems(PROFILE, **FITTING) == []
    assert check.problems(PROFILE) == []
    assert check.problems(PROFILE, fingerprint="") == []  # unknown is not different
    check.refuse(PROFILE, **FITTING)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"layers": 48},
            "the profile was measured on sample-moe with 6 MoE layers, this model has 48: "
            "measure it again with `toolkit profile`",
        ),
        (
            {"experts": 128},
            "the profile was measured on sample-moe with 48 experts a layer, this model has 128: "
            "measure it again with `toolkit profile`",
        ),
        (
            {"top_k": 8},
            "the profile was measured on sample-moe with 4 experts a token, this model has 8: "
            "measure it again with `toolkit profile`",
        ),
        (
            {"decode_workers": 2},
            "the profile has centroids for 4 decode workers, the deployment has 2: "
            "`toolkit profile fit --k 2`",
        ),
        (
            {"sglang": "0.6.0"},
            "the profile was measured with SGLang 0.5.21, this is 0.6.0: measure it again with "
            "`toolkit profile`",
        ),
        (
            {"fingerprint": "sha256:" + "cd" * 32},
            "the profile was measured on sample-moe (sha256:abababababab...), this model's config "
            "or weights are others (sha256:cdcdcdcdcdcd...): measure it again with "
            "`toolkit profile`",
        ),
    ],
)
def test_each_difference_has_its_sentence(given: dict[str, Any], sentence: str) -> None:
    assert check.problems(PROFILE, **{**FITTING, **given}) == [sentence]
    with pytest.raises(ProfileError) as caught:
        check.refuse(PROFILE, **given)
    assert str(caught.value) == sentence


def test_another_model_is_said_once() -> None:
    found = check.problems(PROFILE, fingerprint="sha256:0", layers=48, experts=128)
    assert len(found) == 2 and not any("weights" in x for x in found)


@pytest.mark.parametrize(
    ("decode", "fits"),
    [
        ({"replicas": 2}, True),
        ({"replicas": 2, "tp": 2, "dp": 2, "dp_attention": True}, True),
        ({"replicas": 2, "dp": 2}, False),
    ],
)
def test_a_deployment_has_a_centroid_for_ranks_that_share_their_experts(
    tmp_path: Path, decode: dict[str, Any], fits: bool
) -> None:
    """The embedded profile has two."""
    file = tmp_path / "d.yaml"
    file.write_text(json.dumps({"name": "t", "decode": decode}))  # JSON is YAML
    arguments = ["profile", "check", str(profiles_dir() / "embedded"), "--deployment", str(file)]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code == 0) == fits, result.output
    assert fits or "the deployment has 4" in str(result.exception)
