"""The steps: what they make of their rows; and, once in a while, all of them on the CPU."""

import json
from pathlib import Path

import pytest

from tests.gpu import model, record, run
from tests.gpu.context import Context
from tests.gpu.plan import STEPS
from tests.gpu.steps import (
    classes,
    deterministic,
    draft,
    early,
    eldr,
    experts,
    late,
    lengths,
    migrate,
    outputs,
    preempt,
    signature,
)
from toolkit.settings.deployment import Deployment

CUDA = Context("cuda", False, Path("unused"))


@pytest.mark.slow
def test_a_model_of_random_weights_is_made_once_and_again_when_its_size_changes(
    tmp_path: Path,
) -> None:
    import torch
    from safetensors.torch import load_file

    folder = tmp_path / "model"
    model.make(folder, model.TINY, "cpu")
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    config = json.loads((folder / "config.json").read_text())
    assert config["num_experts"] == model.TINY.num_experts
    parts = {file: load_file(folder / file) for file in set(index.values())}
    assert all(name in parts[file] for name, file in index.items())
    counted = sum(t.numel() for part in parts.values() for n, t in part.items() if "layers" in n)
    norms = model.TINY.num_hidden_layers * 2 * (model.TINY.hidden_size + model.TINY.head_dim)
    assert counted == model.TINY.parameters + norms
    gate = parts[index["model.layers.1.mlp.gate.weight"]]["model.layers.1.mlp.gate.weight"]
    assert 0.5 < float(gate.float().std()) / model.DEVIATION < 2 and gate.dtype == torch.bfloat16
    before = (folder / "size.json").stat().st_mtime_ns
    model.make(folder, model.TINY, "cpu")
    assert (folder / "size.json").stat().st_mtime_ns == before
    (folder / "size.json").write_text("{}")
    model.make(folder, model.TINY, "cpu")
    assert json.loads((folder / "size.json").read_text())["num_experts"] == 16


def test_the_scaled_up_model_fits_four_times_into_a_gpu_of_80_gb() -> None:
    assert 4 * 2 * model.SCALED_UP.parameters < 45e9


@pytest.mark.parametrize(
    "described",
    [
        outputs.described(CUDA),
        signature.described,
        experts.described,
        late.described,
        early.described,
        lengths.described,
        preempt.described,
        migrate.described,
        deterministic.described,
        draft.described,
        eldr.described,
        classes.described,
    ],
    ids=lambda each: getattr(each, "__module__", "outputs").rpartition(".")[2],
)
def test_deployments_for_a_gpu_are_right_as_far_as_can_be_seen_without_one(
    described: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (signature, experts, late, early, lengths, preempt, migrate):
        monkeypatch.setattr(module, "scaled_up", lambda _context: Path("/models/m"))
    monkeypatch.setattr(classes, "model_of", lambda _context: "/models/m")
    monkeypatch.setattr(draft, "quiet", lambda _context: Path("/models/m"))
    monkeypatch.setattr(draft, "draft", lambda _context, right: Path("/models/draft"))
    if callable(described):
        extra = ("on",) if described.__module__ == preempt.__name__ else ()
        extra = ("with",) if described.__module__ == signature.__name__ else extra
        extra = ("right",) if described.__module__ == draft.__name__ else extra
        extra = ("without",) if described.__module__ == eldr.__name__ else extra
        extra = ("preempt@24576",) if described.__module__ == classes.__name__ else extra
        described = described(CUDA, *extra)
    made = Deployment.model_validate(described)
    assert made.device == "cuda"
    for role in (made.prefill, made.decode) if made.mode == "pd" else (made.worker,):
        assert role.gpus == [0] and role.kv_tokens
        assert role.args["attention-backend"] == "triton"


def test_experts_are_summed_up_by_cells() -> None:
    def cell(batch: int, distinct: float, ms: float) -> dict[str, object]:
        rows = [(batch, distinct * 2, ms / 1e3)] * 20
        return {"batch": batch, "step_ms": ms, "distinct": distinct, "rows": rows}

    # Seconds are 1 ms and 0.1 ms an expert of the two layers; the batch costs nothing.
    cells = [cell(b, d, 1 + 0.2 * d) for b in (8, 32) for d in (8.0, 16.0, 64.0)]
    found = experts.summed_up(cells)
    assert found["fixed_batch"]["distinct_ratio"] == 8
    assert found["fixed_batch"]["time_ratio"] == pytest.approx(13.8 / 2.6)
    assert [pair["time_ratio"] for pair in found["fixed_distinct"]] == [1.0, 1.0, 1.0]
    assert found["fit"]["coefficients"][2] == pytest.approx(0.1, rel=0.05)


def test_even_and_mixed_lengths_have_the_same_total() -> None:
    for mean in (64, 512, 2048, 8192):
        even, mixed = (lengths.of_kind(kind, mean, 32) for kind in lengths.KINDS)
        assert len(even) == len(mixed) == 32 and sum(even) == sum(mixed) == 32 * mean
        assert max(mixed) > 7 * mean


def test_the_position_of_a_difference_is_told() -> None:
    assert outputs.first_differences([[1, 2, 3], [4, 5]], [[1, 9, 3], [4, 5]]) == [1]


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_every_step_runs_on_the_cpu(tmp_path: Path) -> None:
    settings = run.Settings("cpu", True, tmp_path / "out", tmp_path / "scratch", 2900.0)
    outcome = run.run(STEPS, settings)
    told = {step.name: record.read(settings.path(step.name)) for step in STEPS}
    assert outcome.status == 0, {name: each["error"] for name, each in told.items()}
    assert all(each["figures"] and each["versions"]["sglang"] for each in told.values())
    assert told["outputs"]["figures"]["different_patched"] == 0
    assert told["preempt"]["figures"]["stopped"] > 0
    assert all(cell["moves"] for cell in told["migrate"]["figures"]["direct"].values())
    assert told["eldr"]["figures"]["batches"] > 8 and "fit" in told["eldr"]["figures"]
    drafted = told["draft"]["figures"]["4"]
    assert drafted["random"]["tokens"] < 1.1 < 3 < drafted["right"]["tokens"] <= 4
    exact = told["deterministic"]["figures"]
    assert exact["bits_beside"] == exact["bits_prefilled"] == exact["cuts"] > 0


def test_a_draft_is_held_against_the_same_batch_without_one() -> None:
    def arm(step: float, tokens: float) -> dict[str, float]:
        return {"step_ms": step, "tokens": tokens, "token_ms": step / tokens}

    found = draft.compared(
        {"none": arm(2.0, 1.0), "random": arm(3.0, 1.0), "right": arm(3.0, 4.0)},
        {"none": [[1], [2]], "random": [[1], [3]], "right": [[1], [2]]},
    )
    assert (found["random"]["step_ratio"], found["random"]["token_ratio"]) == (1.5, 1.5)
    assert (found["right"]["step_ratio"], found["right"]["token_ratio"]) == (1.5, 0.375)
    assert (found["random"]["different"], found["right"]["different"]) == (1, 0)
