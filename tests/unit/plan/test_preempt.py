"""Classes in plans: preemption is searched, with off among the values, and a limit for those in a
hurry alone decides."""

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.plan.tasks import COST, candidate, deployment_file, document
from tests.unit.plan.test_cli import command
from toolkit.contract.request_class import RequestClass
from toolkit.plan.candidate import Given
from toolkit.plan.errors import PlanError
from toolkit.plan.objective import PlanSlo, rank, share
from toolkit.plan.plain_data import write
from toolkit.plan.planner import Planned, Task, make
from toolkit.plan.preempt import OFF
from toolkit.plan.space import plain, searched
from toolkit.plan.split import Split
from toolkit.plan.tables import head, prediction, refusal, sentences, sized
from toolkit.settings.load import load_deployment
from toolkit.simulate.of_deployment import fleet_of
from toolkit.simulate.request import Request

LS, BE = RequestClass.LATENCY_SENSITIVE, RequestClass.BEST_EFFORT
CLASSES = {"decode_policy": "level", "classes": {}}
ROOMY = {"kv_tokens": 200_000, "max_running": 64}
URGENT = PlanSlo(urgent_ttft=0.15)


def knobs(slo: PlanSlo | None = None, **changes: Any) -> dict[str, Any]:
    own = candidate(**{"router": CLASSES} | changes)
    return {
        knob.name: knob for knob in searched(own, (Split(1, 3),), local=False, slo=slo or PlanSlo())
    }


def traffic(
    seed: int, count: int = 80, urgent: float = 0.5, rate: float = 4.0
) -> Iterator[Request]:
    """Best-effort prompts of 2,000 tokens (0.21 s), latency-sensitive ones of 100 (20 ms)."""
    source = random.Random(seed)
    now = 0.0
    for number in range(count):
        now += source.expovariate(rate)
        latency_sensitive = source.random() < urgent
        kind = LS if latency_sensitive else BE
        yield Request(number, now, 100 if latency_sensitive else 2000, 20, request_class=kind)


def planned(
    slo: PlanSlo | None = None, urgent: float = 0.5, rate: float = 4.0, **changes: Any
) -> Planned:
    task = Task(
        document(**{"router": CLASSES} | changes.pop("file", {})),
        Given(),
        COST,
        lambda seed: traffic(seed, urgent=urgent, rate=rate),
        slo or PlanSlo(),
        seeds=2,
    )
    return make(replace(task.sized(2, None, 150, 80), **changes))


def test_it_is_searched_where_requests_have_classes() -> None:
    assert not [name for name in knobs(router={"decode_policy": "level"}) if "preempt" in name]
    found = knobs()
    policy, every = found["prefill.preempt.policy"], found["prefill.preempt.slice"]
    assert policy.values == (OFF, "strict", "fair@0.5", "fair@0.8")
    assert every.values == (1, 2, 4, 6), "the embedded model has six layers"
    assert not every.applies(document(router=CLASSES))


def test_a_deadline_is_searched_where_there_is_one() -> None:
    policy = knobs(URGENT)["prefill.preempt.policy"]
    assert "deadline@0.01" in policy.values
    on = policy.write(document(router=CLASSES), "deadline@0.01")
    assert on["prefill"]["preempt"]["slo_s"] == 0.15
    assert "slo_s" not in policy.write(on, "strict")["prefill"]["preempt"]
    own = knobs(prefill={"preempt": {"policy": "deadline@0.02", "slo_s": 2.0}})
    assert set(own["prefill.preempt.policy"].values) > {"deadline@0.01", "deadline@0.02"}


def test_only_the_order_is_searched_where_prompts_cannot_be_stopped() -> None:
    found = knobs(prefill={"args": {"enable-lora": True}})
    assert "prefill.preempt.policy" in found and "prefill.preempt.slice" not in found


KNOBS = knobs(URGENT, prefill={"preempt": {"slice": 3, "pauses": 5, "seconds": 2.0}})


@given(
    policy=st.sampled_from(KNOBS["prefill.preempt.policy"].values),
    every=st.sampled_from(KNOBS["prefill.preempt.slice"].values),
    between=st.sampled_from([OFF, "strict", "fair@0.5"]),
)
@settings(max_examples=examples(40), deadline=None)
def test_values_reach_the_fleet_through_the_file(policy: str, every: int, between: str) -> None:
    """And what the file says of bounds stays, also when it was off on the way."""
    names = KNOBS["prefill.preempt.policy"], KNOBS["prefill.preempt.slice"]
    changed = names[0].write(document(router=CLASSES), between)
    changed = names[0].write(changed, policy)
    if names[1].applies(changed):
        changed = names[1].write(changed, every)
        assert names[1].read(changed) == every
    assert names[0].read(changed) == policy
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.yaml"
        write(path, changed, ["said"])
        found = fleet_of(load_deployment(path)).prefill.preempt
    if policy == OFF:
        assert found is None
        return
    assert found is not None
    rules = found.rules
    assert (rules.policy, rules.slice, rules.pauses, rules.seconds) == (policy, every, 5, 2.0)
    assert rules.slo_s == (0.15 if policy.startswith("deadline") else None)


def test_the_baseline_has_none() -> None:
    own = document(router=CLASSES, prefill={"replicas": 1, "preempt": "strict"})
    assert plain(own)["prefill"] == {"replicas": 1}
    assert plain(document())["prefill"] == {"replicas": 1}


# ---- what is better ----


def figures(whole: float, theirs: float | None, latency: float = 1.0) -> dict[str, float]:
    found = {"good_share": whole, "e2e_mean": latency}
    return found if theirs is None else found | {"latency_sensitive.good_share": theirs}


@given(whole=st.floats(0, 1), theirs=st.floats(0, 1))
def test_both_shares_must_be_kept(whole: float, theirs: float) -> None:
    one = [figures(whole, theirs)]
    assert share(one, PlanSlo(ttft=1.0)) == whole
    assert share(one, URGENT) == min(whole, theirs)
    assert URGENT.met(one) == (whole >= 0.9 and theirs >= 0.9)
    assert rank(one, URGENT) <= rank([figures(whole / 2, theirs / 2)], URGENT)


def test_a_quick_look_may_have_nobody_latency_sensitive() -> None:
    assert share([figures(0.7, None)], URGENT) == 0.7


def test_limits_are_named() -> None:
    assert str(URGENT) == "TTFT of latency-sensitive requests <= 150 ms"
    assert URGENT.given and URGENT.goodput == "latency_sensitive.goodput_s"
    assert PlanSlo(ttft=1.0, urgent_ttft=0.1).goodput == "goodput_s"
    assert PlanSlo(tpot=1.0, urgent_ttft=0.1).goodput == "goodput_s"
    with pytest.raises(PlanError, match="--slo-ls-ttft-ms must be above 0, not -2"):
        PlanSlo(urgent_ttft=-0.002)


# ---- whole plans ----


@pytest.mark.slow
def test_it_is_turned_on_for_a_limit_that_needs_it() -> None:
    made = planned(URGENT, file={"decode": ROOMY}, workers=2)
    assert made.met
    stopping = made.plan.fleet.prefill.preempt
    assert stopping is not None and made.plan.document["prefill"]["preempt"]["policy"] != OFF
    assert made.baseline.fleet.prefill.preempt is None
    theirs = [
        [each["latency_sensitive.good_share"] for each in x] for x in (made.before, made.after)
    ]
    assert max(theirs[0]) < 0.9 <= min(theirs[1])
    effect = {each.name: each for each in made.effects}["prefill.preempt.policy"]
    assert effect.verdict != "does not matter" and OFF in [other.value for other in effect.others]
    said = " ".join(sentences(made))
    assert any("% of latency-sensitive ones." in line for line in head(made, "plan", "file"))
    assert "preempt" in sized(made.plan) and "% of latency-sensitive ones" in said
    assert "turns the overlap scheduler and prefill CUDA graphs off" in said
    rows = [str(cell) for cell in prediction(made).columns[0].cells]
    assert "latency-sensitive: TTFT mean, ms" in rows and "best-effort: TTFT p99, ms" in rows
    told = made.to_json()
    assert told["slo"]["ls_ttft_ms"] == pytest.approx(150)
    assert told["gain"]["latency_sensitive.ttft_mean"]["ratio"] < 0.7


@pytest.mark.slow
def test_it_is_not_turned_on_for_nothing() -> None:
    made = planned(urgent=0.0, workers=2)
    assert made.plan.fleet.prefill.preempt is None
    assert any("it takes latency-sensitive and best-effort" in line for line in made.remarks)
    bare = {"router": {"decode_policy": "level"}}
    made = planned(URGENT, workers=2, file=bare)
    assert any("the file has no router.classes" in line for line in made.remarks)
    made = planned(PlanSlo(ttft=5.0), 0.5, 0.2, workers=2, file={"decode": ROOMY, "device": "cuda"})
    assert "prefill.preempt.policy" in [effect.name for effect in made.effects]
    assert made.plan.fleet.prefill.preempt is None, "prompts hardly ever meet"


@pytest.mark.slow
def test_a_limit_that_nobody_alone_keeps_is_said() -> None:
    made = planned(PlanSlo(urgent_ttft=0.01), workers=2)
    assert not made.met and made.needs is not None
    (bound,) = made.needs.bounds
    assert bound.what == "TTFT of latency-sensitive requests" and bound.prompt == 100
    assert bound.seconds < 0.1, "not that of best-effort ones"
    assert any("gets its first token after" in line for line in refusal(made))


def test_a_limit_for_requests_that_there_are_none_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no request is latency-sensitive: give --ls-share"):
        planned(URGENT, urgent=0.0)
    file = deployment_file(tmp_path)
    code, printed = command(
        str(file), "--rate", "20", "--seconds", "3", "--seeds", "1", "--budget", "20",
        "--cost", str(tmp_path / "cost.yaml"), "--slo-ls-ttft-ms", "100",
    )  # fmt: skip
    assert code == 1 and "no request is latency-sensitive" in printed


@pytest.mark.slow
def test_the_command_writes_it(tmp_path: Path) -> None:
    file, out = deployment_file(tmp_path), tmp_path / "plan.yaml"
    file.write_text(file.read_text().replace("max_queue: 77", "max_queue: 77, classes: {}"))
    code, printed = command(
        str(file), "--rate", "9", "--seconds", "20", "--seeds", "1", "--budget", "60",
        "--cost", str(tmp_path / "cost.yaml"), "--ls-share", "0.3", "--slo-ls-ttft-ms", "400",
        "--out", str(out), "--anyway",
    )  # fmt: skip
    assert code in (0, 3), printed
    assert "latency-sensitive: TTFT mean" in printed
    assert load_deployment(out).router.classes is not None
