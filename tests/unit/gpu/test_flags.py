"""SGLang takes the flags of every step's GPU workers: asked of its own parser, without a GPU, in
the pinned release and in that of the parcels."""

import os
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import model
from tests.gpu.context import Context
from tests.gpu.packing.wanted import SGLANG
from tests.gpu.steps import (
    deterministic,
    draft,
    early,
    experts,
    late,
    lengths,
    migrate,
    outputs,
    preempt,
    signature,
)
from tests.releases import fetch
from tests.sglang_python import PROJECT
from toolkit.contract.capturing import worker_problems
from toolkit.launch.checks.flags import _ask as ask
from toolkit.launch.resolve import resolve
from toolkit.settings.deployment import Deployment

pytestmark = [pytest.mark.full, pytest.mark.sglang]


@pytest.mark.parametrize("release", [version("sglang"), SGLANG])
def test_sglang_takes_the_flags_of_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    path = os.pathsep.join([str(fetch.place(release)), str(PROJECT)])
    monkeypatch.setenv("PYTHONPATH", path)
    folder = tmp_path / "model"
    longest = model.SCALED_UP.max_position_embeddings
    model.make(folder, replace(model.TINY, max_position_embeddings=longest), "cpu")
    for module in (signature, experts, late, early, lengths, preempt, migrate):
        monkeypatch.setattr(module, "scaled_up", lambda _context: folder)
    cuda = Context("cuda", False, tmp_path)
    monkeypatch.setattr(draft, "quiet", lambda _context: folder)
    drafts = folder.parent / "draft"
    shutil.copytree(folder, drafts)
    monkeypatch.setattr(draft, "draft", lambda _context, right: drafts)
    every: list[dict[str, Any]] = [
        outputs.described(cuda), experts.described(cuda), late.described(cuda),
        early.described(cuda),
        lengths.described(cuda), migrate.described(cuda), deterministic.described(cuda),
        *(draft.described(cuda, arm) for arm in draft.ARMS),
        *(signature.described(cuda, side) for side in signature.SIDES),
        *(preempt.described(cuda, side) for side in preempt.SIDES),
    ]  # fmt: skip
    lines = []
    for described in every:
        plan = resolve(Deployment.model_validate(described))
        for worker in plan.workers:
            name = f"{plan.name}/{worker.name}"
            lines.append({"name": name, "argv": list(worker.argv), "device": "cuda"})
    answers, complaint = ask(lines)
    assert complaint is None
    assert {n: a["error"] for n, a in answers.items() if not a["ok"]} == {}
    assert len(answers) == len(lines)
    refused = {
        name: problem.what
        for name, answer in answers.items()
        for problem in worker_problems(answer["resolved"])
        if problem.fatal and answer["resolved"]["enable_return_routed_experts"]
    }
    assert refused == {}
    flags = [(line["name"], line["argv"]) for line in lines]
    on, off = (answers[f"preempt-{side}/worker-0"]["resolved"] for side in ("on", "off"))
    assert all("--disable-overlap-schedule" in argv for name, argv in flags if "preempt" in name)
    assert on["prefill_cuda_graph"] == off["prefill_cuda_graph"] == "disabled"
