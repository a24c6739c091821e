"""Which workers can be profiled, and what is refused with which words."""

from typing import Any

import pytest
from typer.testing import CliRunner

from toolkit.contract.events import Experts, Hello
from toolkit.profile.calibrate import CalibrationSettings, facts, request
from toolkit.profile.calibration_prompts import CalibrationPrompt, own_prompts
from toolkit.profile.measure import check_before
from toolkit.profile.shards import Shards
from toolkit.profile_folder.errors import ProfileError


def hello(**changes: Any) -> Hello:
    experts = {"count": 48, "top_k": 4, "layers": 6, "captured": True} | changes.pop("experts", {})
    known: dict[str, Any] = {"model": "m", "fingerprint": "sha256:1", "experts": Experts(**experts)}
    return Hello(**(known | changes))


def test_what_workers_agree_on() -> None:
    known = facts({"a": hello(), "b": hello()})
    assert (known.experts, known.top_k) == (48, 4)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (hello(experts={"count": 0, "top_k": 0}), "different models"),
        (hello(fingerprint="sha256:2"), "different models"),
        (hello(experts={"captured": False}), "b keep no experts: put `capture_experts: true`"),
    ],
)
def test_workers_that_differ_are_refused(other: Hello, words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        facts({"a": hello(), "b": other})


def test_a_dense_model_is_refused() -> None:
    with pytest.raises(ProfileError, match="dense model"):
        facts({"a": hello(experts={"count": 0, "top_k": 0})})


def test_an_unfinished_run_with_other_options_is_refused_before_any_worker_starts(
    tmp_path: Any,
) -> None:
    prompts, settings = own_prompts(), CalibrationSettings()
    check_before(tmp_path / "none", prompts, settings)
    folder = tmp_path / "x.measuring"
    Shards(folder, {"fingerprint": "sha256:1", "prompts": "p", "settings": {}})
    with pytest.raises(ProfileError, match="other prompts, settings"):
        check_before(folder, prompts, settings)


def test_requests_are_of_the_prompt_s_kind() -> None:
    chat = request(CalibrationPrompt("a", "hi"), CalibrationSettings(), "m", "r1")
    assert chat[0] == "/v1/chat/completions"
    native = request(
        CalibrationPrompt("a", "", (1, 2)), CalibrationSettings(output_tokens=5), "m", "r1"
    )
    assert native[0] == "/generate"
    assert native[1]["sampling_params"]["max_new_tokens"] == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--live", "1"], "--live needs --url"),
        (["--url", "http://127.0.0.1:9", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
    ],
)
def test_options_that_cannot_work(arguments: list[str], words: str, tmp_path: Any) -> None:
    from toolkit.cli.profile import app

    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "p")])
    assert result.exit_code == 2
    assert words in result.output
