"""`prefill.preempt` of a deployment file: what it becomes, and what does not go with it."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.stand_ins import deployment, tiny_model
from tests.unit.settings.written import problems_of
from toolkit.contract.preempting import Preempting
from toolkit.contract.variables import PAUSE_VARIABLE, PREEMPT_VARIABLE
from toolkit.launch.checks import possible
from toolkit.launch.checks.preempting import preempting
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.settings.router.config import RouterConfig

CLASSES: dict[str, Any] = {"classes": {}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def told(plan: Plan) -> list[bool]:
    """Whether the router is told of each worker that it stops best-effort prompts."""
    assert plan.router is not None and plan.router.config is not None
    config = RouterConfig.model_validate(plan.router.config)
    return [worker.preempts for worker in config.workers]


@pytest.mark.parametrize(
    "value",
    ["strict", "fair@0.7", {"policy": "deadline@0.02", "slice": 4, "slo_s": 0.5}, {"seconds": 3}],
)
def test_prefill_workers_are_told_and_read_the_same(model: Path, value: Any) -> None:
    plan = resolve(deployment(model, prefill={"preempt": value}, router=CLASSES))
    prefill, decode = plan.workers
    read = Preempting.read(prefill.env[PREEMPT_VARIABLE])
    assert read == Preempting.model_validate({"policy": value} if isinstance(value, str) else value)
    assert PREEMPT_VARIABLE not in decode.env
    assert "--disable-overlap-schedule" in prefill.argv
    assert "--disable-overlap-schedule" not in decode.argv
    assert preempting(plan) == []
    assert told(plan) == [True, False]


def test_decode_workers_are_told_to_pause_answers(model: Path) -> None:
    plan = resolve(deployment(model, decode={"preempt": {"seconds": 3}}, router=CLASSES))
    prefill, decode = plan.workers
    assert Preempting.read(decode.env[PAUSE_VARIABLE]) == Preempting(seconds=3)
    assert PAUSE_VARIABLE not in prefill.env and PREEMPT_VARIABLE not in decode.env
    assert "--disable-overlap-schedule" not in decode.argv
    assert preempting(plan) == [] and told(plan) == [False, True]
    (problem,) = preempting(resolve(deployment(model, decode={"preempt": "strict"})))
    assert problem.fatal and "decode.preempt" in str(problem)


def test_by_default_nothing_is_stopped_and_nothing_costs(model: Path) -> None:
    plan = resolve(deployment(model))
    for worker in plan.workers:
        assert PREEMPT_VARIABLE not in worker.env
        assert "SGLANG_EAGER_INPUT_NO_COPY" not in worker.env
        assert "--disable-overlap-schedule" not in worker.argv
    assert preempting(plan) == []


def test_on_gpus_prompts_run_layer_by_layer_too(model: Path) -> None:
    file = deployment(model, prefill={"preempt": "strict"}, router=CLASSES)
    assert "--disable-prefill-cuda-graph" in resolve(file.on_device("cuda")).workers[0].argv
    assert "--disable-prefill-cuda-graph" not in resolve(file).workers[0].argv


def test_between_experts_there_is_nothing_on_a_gpu(model: Path) -> None:
    file = deployment(model, prefill={"preempt": {"experts": 8}}, router=CLASSES)
    assert preempting(resolve(file)) == []
    (note,) = preempting(resolve(file.on_device("cuda")))
    assert not note.fatal and "between layers" in note.what


@pytest.mark.parametrize(
    ("router", "said"),
    [
        ({}, "without router.classes"),
        ({"kind": "sglang"}, "only our router"),
        ({"kind": "none"}, "only our router"),
    ],
)
def test_without_classes_it_would_stop_nobody(
    model: Path, router: dict[str, Any], said: str
) -> None:
    plan = resolve(deployment(model, prefill={"preempt": "strict"}, router=router))
    (problem,) = preempting(plan)
    assert problem.fatal and said in problem.what and "prefill.preempt" in str(problem)
    assert problem in possible.quick(plan)


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ({"args": {"pp-size": 2}}, "pipeline stages"),
        ({"args": {"enable-lora": True}}, "LoRA"),
        ({"tp": 2, "dp": 2, "dp_attention": True}, "DP attention"),
    ],
)
def test_where_only_chunks_can_be_stopped_it_says_so(
    model: Path, role: dict[str, Any], said: str
) -> None:
    plan = resolve(deployment(model, prefill={"preempt": "strict", **role}, router=CLASSES))
    (note,) = preempting(plan)
    assert not note.fatal and said in note.what and "between chunks" in note.what
    assert told(plan) == [False, False]


@pytest.mark.parametrize(
    ("line", "at", "said"),
    [
        ("prefill: {preempt: strikt}", "prefill.preempt", "there are strict"),
        ("prefill: {preempt: fair@2}", "prefill.preempt", "at most 1"),
        ("prefill: {preempt: {slice: 0}}", "prefill.preempt.slice", "equal to 1"),
        ("prefill: {preempt: {layers: 2}}", "prefill.preempt.layers", "unknown key"),
        ("prefill: {preempt: {seconds: .inf}}", "prefill.preempt.seconds", "finite"),
        ("decode: {preempt: fair}", "decode", "only pauses and seconds"),
        ("decode: {preempt: {slice: 2}}", "decode", "only pauses and seconds"),
    ],
)
def test_mistakes_are_found_with_their_line(tmp_path: Path, line: str, at: str, said: str) -> None:
    (problem,) = problems_of(tmp_path, line)
    assert problem.startswith("2: ") and at in problem and said in problem


def test_prefill_delayer_needs_what_stopped_prompts_turn_off(model: Path) -> None:
    args = {"args": {"enable-prefill-delayer": True}}
    both = deployment(model, prefill={"preempt": "strict"} | args, router=CLASSES)
    (problem,) = preempting(resolve(both))
    assert problem.fatal and problem.where == "prefill.args.enable-prefill-delayer"
    paused = deployment(model, prefill=args, decode={"preempt": {}}, router=CLASSES)
    assert preempting(resolve(paused)) == []
