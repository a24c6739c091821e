"""`prefill.waiting` of a deployment file: what it becomes, and what does not go with it."""

from pathlib import Path
from typing import Any

import pytest

from patches.pd.waiting_queue import wanted
from tests.unit.launch.stand_ins import deployment, tiny_model
from tests.unit.settings.written import problems_of
from toolkit.contract.variables import WAITING_VARIABLE
from toolkit.contract.waiting import Waiting
from toolkit.launch.checks import possible
from toolkit.launch.checks.waiting import PARKED, waiting
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def parked(plan: Plan) -> Any:
    assert plan.router is not None and plan.router.config is not None
    return plan.router.config.get("parked_per_prefill")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("sjf", "sjf:5"),
        ({"order": "sjf"}, "sjf:5"),
        ({"order": "sjf", "age_s": 0.25}, "sjf:0.25"),
        ({"order": "sjf", "age_s": 2, "class_age_s": 60}, "sjf:2:60"),
        ("fcfs", ""),
        ({"order": "fcfs"}, ""),
    ],
)
def test_prefill_workers_are_told_and_read_the_same(
    model: Path, monkeypatch: pytest.MonkeyPatch, value: Any, text: str
) -> None:
    prefill, decode = resolve(deployment(model, prefill={"waiting": value})).workers
    assert prefill.env.get(WAITING_VARIABLE, "") == text
    assert WAITING_VARIABLE not in decode.env
    monkeypatch.setenv(WAITING_VARIABLE, text)
    assert wanted() == Waiting.read(text)
    assert wanted().text == text


def test_by_default_it_is_sglangs_own(model: Path) -> None:
    plan = resolve(deployment(model))
    assert not any(WAITING_VARIABLE in worker.env for worker in plan.workers)
    assert parked(plan) is None and waiting(plan) == []


def test_plain_workers_can_too(model: Path) -> None:
    plan = resolve(deployment(model, mode="plain", worker={"waiting": "sjf"}))
    assert [worker.env[WAITING_VARIABLE] for worker in plan.workers] == ["sjf:5"]
    assert parked(plan) is None, "only prefill workers have that limit"


def test_the_same_on_the_other_device(model: Path) -> None:
    file = deployment(model, prefill={"waiting": {"order": "sjf", "age_s": 3}})
    assert resolve(file.on_device("cuda")).workers[0].env[WAITING_VARIABLE] == "sjf:3"


def test_a_worker_gets_enough_to_choose_from_unless_told_otherwise(model: Path) -> None:
    assert parked(resolve(deployment(model, prefill={"waiting": "sjf"}))) == PARKED
    few = resolve(deployment(model, prefill={"waiting": "sjf"}, router={"parked_per_prefill": 8}))
    assert parked(few) == 8
    (note,) = waiting(few)
    assert not note.fatal and "in the order of arrival" in note.what and str(PARKED) in note.repair
    many = deployment(model, prefill={"waiting": "sjf"}, router={"parked_per_prefill": 100})
    assert waiting(resolve(many)) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"schedule-policy": "lpm"}, "prefill.args.schedule-policy: lpm and prefill.waiting: sjf"),
        ({"schedule_policy": "hrrn"}, "remove one of them"),
        ({"pp-size": 2}, "prefill.args.pp-size: prefill.waiting: sjf is unproven there"),
        ({"pipeline-parallel-size": 2}, "use tp"),
    ],
)
def test_flags_that_do_not_go_with_it(model: Path, args: dict[str, Any], said: str) -> None:
    plan = resolve(deployment(model, prefill={"waiting": "sjf", "args": args}))
    (problem,) = waiting(plan)
    assert problem.fatal and said in str(problem)
    assert problem in possible.quick(plan)
    assert waiting(resolve(deployment(model, prefill={"args": args}))) == []


def test_flags_that_do(model: Path) -> None:
    args = {"schedule-policy": "fcfs", "enable-priority-scheduling": True, "pp-size": 1}
    assert waiting(resolve(deployment(model, prefill={"waiting": "sjf", "args": args}))) == []


@pytest.mark.parametrize(
    ("line", "at", "said"),
    [
        ("prefill: {waiting: lpm}", "prefill.waiting.order", "'fcfs' or 'sjf'"),
        ("prefill: {waiting: {age_s: 3}}", "prefill.waiting.order", "required"),
        ("prefill: {waiting: {order: sjf, age: 3}}", "prefill.waiting.age", "'age_s'"),
        ("prefill: {waiting: {order: sjf, age_s: -1}}", "prefill.waiting.age_s", "equal to 0"),
        ("prefill: {waiting: {order: sjf, age_s: .inf}}", "prefill.waiting.age_s", "finite"),
        ("prefill: {waiting: {order: sjf, age_s: .nan}}", "prefill.waiting.age_s", ""),
        ("prefill: {waiting: {order: fcfs, age_s: 3}}", "prefill.waiting", "for order: sjf"),
        ("decode: {waiting: sjf}", "decode", "set it under prefill"),
    ],
)
def test_mistakes_are_found_with_their_line(tmp_path: Path, line: str, at: str, said: str) -> None:
    (problem,) = problems_of(tmp_path, line)
    assert problem.startswith("2: ") and at in problem and said in problem
