"""Models that the CPU engine cannot run are refused before a worker starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.architectures import checkpoints, deployment
from tests.architectures.configs import ARCHITECTURES
from toolkit.launch.checks import possible
from toolkit.launch.checks.engine import engine
from toolkit.launch.checks.preempting import between_chunks
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.settings.deployment import Deployment


def plan(name: str, folder: Path, device: str) -> Plan:
    of = ARCHITECTURES[name]
    model = checkpoints.write_config(of, folder / "model")
    contents = deployment.described(of, model, device=device)
    return resolve(Deployment.model_validate(contents))


REFUSED = {
    "qwen3-next": "Qwen3NextForCausalLM: its linear attention",
    "llama4": "Llama4ForCausalLM: it would leave out the rotary embedding",
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_the_cpu_engine_cannot_run_is_refused_there_only(name: str, tmp_path: Path) -> None:
    assert engine(plan(name, tmp_path, "cuda")) == []
    found = engine(plan(name, tmp_path, "cpu"))
    assert len(found) == (name in REFUSED)
    for problem in found:
        assert problem.fatal and REFUSED[name] in problem.what
        assert "device: cuda" in problem.repair


@pytest.mark.parametrize("change", [{"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}])
def test_dense_layers_that_sglang_would_not_load_are_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    made = plan("qwen3-moe", tmp_path, "cuda")
    assert engine(made) == []
    facts = replace(made.model, config=made.model.config | change)
    (problem,) = engine(replace(made, model=facts))
    assert problem.fatal and "without a word" in problem.what


def test_a_start_without_a_look_at_the_flags_is_refused_too(tmp_path: Path) -> None:
    found = possible.quick(plan("qwen3-next", tmp_path, "cpu"))
    assert any("linear attention" in problem.what for problem in found if problem.fatal)


def test_its_prompts_are_stopped_between_chunks(tmp_path: Path) -> None:
    worker = plan("qwen3-next", tmp_path, "cuda").workers[0]
    assert "a state beside the KV" in between_chunks(worker, keeps_state=True)
    assert between_chunks(worker) == ""
