"""The deployment file: strict, and clear about what is wrong."""

from pathlib import Path
from typing import Any

import pytest

from toolkit.launch.errors import LaunchError
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load_deployment


def load(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "d.yaml"
    file.write_text(text)
    return load_deployment(file)


def problems_of(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(LaunchError) as caught:
        load(tmp_path, text)
    return [str(p) for p in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "line", "nearest"),
    [
        ("name: a\nrouters: {}\n", 2, "'router'"),
        ("name: a\ndecode:\n  replicas: 2\n  replica: 3\n", 4, "'replicas'"),
        ("name: a\nrouter:\n  decode_polcy: random\n", 3, "'decode_policy'"),
        ("name: a\nmodel: {paht: x}\n", 2, "'path'"),
        ("name: a\nhosts:\n  n0: {address: 10.0.0.1, gpu: 8}\n", 3, "'gpus'"),
        ("name: a\nprefill:\n  max-running: 3\n", 3, "'max_running'"),
    ],
)
def test_unknown_key_names_line_and_nearest(
    tmp_path: Path, text: str, line: int, nearest: str
) -> None:
    (problem,) = problems_of(tmp_path, text)
    assert f"d.yaml:{line}: unknown key" in problem
    assert f"did you mean {nearest}?" in problem


def test_far_off_key_lists_what_is_known(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "name: a\nzzzzqq: 1\n")
    assert "known keys: " in problem and "decode" in problem


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "name: a\ndevise: cpu\nprefill: {tp: 0}\nmode: both\n")
    assert len(found) == 3


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("tau: 1.5", "less than or equal to 1"),
        ("tau: -0.1", "greater than or equal to 0"),
        ("tau: wide", "valid number"),
        ("tau: .nan", "equal to"),
        ("decode_policy: nearest", "unknown decode policy 'nearest'; known: random, "),
        ("decode_policy: eldr@2", "tau = 2 must lie in [0, 1]; known: random, "),
        ("decode_policy: random@2", "takes no parameter"),
        ("prefill_policy: eldr", "unknown prefill policy 'eldr'; known: random, "),
        ("refit_on_drift: perhaps", "valid boolean"),
    ],
)
def test_a_bad_policy_or_tau_is_found_with_its_line(tmp_path: Path, line: str, wrong: str) -> None:
    (problem,) = problems_of(tmp_path, f"name: a\nrouter:\n  kind: toolkit\n  {line}\n")
    assert f"d.yaml:4: router.{line.split(':')[0]}: " in problem
    assert wrong in problem


def test_sglang_s_router_has_its_own_policies() -> None:
    text = {"name": "a", "router": {"kind": "sglang", "decode_policy": "cache_aware"}}
    assert Deployment.model_validate(text).router.decode_policy == "cache_aware"


@pytest.mark.parametrize("kind", ["sglang", "none"])
def test_other_routers_do_not_follow_experts(tmp_path: Path, kind: str) -> None:
    for ours in ("eldr@0.2", "composed@eldr+br0"):
        (problem,) = problems_of(
            tmp_path, f"name: a\nrouter:\n  decode_policy: {ours}\n  kind: {kind}\n"
        )
        assert "d.yaml:3" in problem and "use kind: toolkit" in problem


def test_a_wrong_kind_is_the_only_complaint(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "name: a\nrouter: {kind: nginx, decode_policy: eldr}\n")
    assert "router.kind" in problem


def test_sizes_that_do_not_divide(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "name: a\ndecode:\n  tp: 4\n  dp: 3\n  dp_attention: true\n")
    assert "d.yaml:2" in problem and "multiple of dp" in problem


def test_repeated_key_is_an_error(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "name: a\nrouter: none\nrouter: sglang\n")
    assert "d.yaml:3" in problem and "first on line 2" in problem


@pytest.mark.parametrize("text", ["", "- a\n", "name: [\n", "{}"])
def test_not_a_deployment(tmp_path: Path, text: str) -> None:
    assert problems_of(tmp_path, text)


def test_short_forms(tmp_path: Path) -> None:
    deployment = load(tmp_path, "name: a\nmodel: /m\nrouter: sglang\n")
    assert (deployment.model.path, deployment.router.kind) == ("/m", "sglang")


def test_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot be read"):
        load_deployment(tmp_path / "none.yaml")
