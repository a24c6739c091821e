"""Which systems can pay: the questions of the suite, answered by the simulator."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.plan.tasks import COST, candidate, deployment_file, document, task
from tests.unit.plan.test_cli import command
from toolkit.bench.suite.expert_questions import PlacedExperts
from toolkit.bench.suite.question import Subject
from toolkit.bench.suite.questions import questions_for
from toolkit.plan.arithmetic import Arithmetic
from toolkit.plan.errors import PlanError
from toolkit.plan.placed_arms import SUBJECTS
from toolkit.plan.planner import Task
from toolkit.plan.systems import CHUNKS, SystemAnswer, answer
from toolkit.settings.systems import SYSTEMS
from toolkit.simulate.costs import load, minds_lengths
from toolkit.simulate.costs.captured import Captured
from toolkit.simulate.costs.linear import Decode, Linear, Prefill
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.of_draft import DraftCosts
from toolkit.simulate.request import Request
from toolkit.simulate.workloads.classes import with_classes

EMBEDDED = {"router": {"profile": "embedded", "decode_policy": "eldr"}}


def asked(task: Task, capture: float = 0.0) -> dict[Subject, SystemAnswer]:
    return {each.system: each for each in answer(task, capture).answers}


def left_out(task: Task) -> dict[Subject, str]:
    return dict(answer(task, 0.0).left_out)


def in_flight(**changes: Any) -> Task:
    return task(in_flight=40, **changes)


@pytest.mark.slow
def test_every_system_is_answered_or_left_out_with_a_reason() -> None:
    found = answer(replace(in_flight(), seeds=3, budget=200), 0.0)
    names = [each.system for each in found.answers] + [name for name, _ in found.left_out]
    assert len(names) == len(set(names)) and set(names) <= {*SYSTEMS, "expert placement"}
    assert {"late dispatch", "level KV", "moves"} == {each.system for each in found.answers}
    assert all(why for _, why in found.left_out)
    for each in found.answers:
        assert each.because and each.verdict.ratio is not None
        assert each.verdict.pairs == 3, "a seed is a sample"
    json.dumps(found.to_json())


WIDE = {"tp": 2, "dp": 2, "ep": 2, "dp_attention": True}
SIZES = {"replicas": 2, "kv_tokens": 20_000, "max_running": 16}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"decode": {**WIDE, **SIZES}}])
def test_it_asks_what_the_suite_asks(changes: dict[str, Any]) -> None:
    """Whatever the suite has a question about is answered here, or left out with a reason."""
    made = replace(in_flight(), document=document(model="embedded", **changes))
    found = answer(made, 0.0)
    here = [*(each.system for each in found.answers), *(name for name, _ in found.left_out)]
    suite = questions_for(made.document, placed=PlacedExperts({"eplb": "a", "joint": "b"}))
    there = [each.system for each in suite.questions]
    there += [each.system for each in suite.left_out]
    assert sorted(here) == sorted(there) and len(set(there)) == len(there)
    left, wide = dict(found.left_out), bool(changes)
    for system in SUBJECTS:
        assert ("--placement search" in left[system]) is wide


@pytest.mark.slow
def test_what_the_balancers_do_is_played_once() -> None:
    made = in_flight()
    found = answer(made, 0.0)
    arms = {
        (arm.variant, arm.name)
        for question in questions_for(made.document).questions
        for arm in question.arms
        if question.system in ("late dispatch", "level KV", "moves")
    }
    assert found.simulations <= 2 * len(arms)
    answer(replace(made, budget=2 * len(arms)), 0.0)  # who is not played needs no budget
    with pytest.raises(PlanError, match="--budget 3 is too few"):
        answer(replace(made, budget=3), 0.0)


@pytest.mark.slow
def test_balance_is_a_matter_of_answers_where_requests_come_when_they_come() -> None:
    """A policy cannot serve more tokens a second than are asked for."""
    closed, opened = (asked(made)["level KV"].verdict for made in (in_flight(), task()))
    assert closed.question.metric.key == "output_throughput"
    assert opened.question.metric.key == "mean_e2e_latency_ms"


def layered(layers: int = 6) -> Task:
    """Of the embedded model, with long best-effort prompts."""

    def arriving(seed: int) -> list[Request]:
        rng = np.random.default_rng(seed)
        at = np.cumsum(rng.exponential(1 / 3.0, 80)).tolist()
        made = [Request(i, at[i], int(rng.integers(200, 3000)), 12) for i in range(80)]
        return list(with_classes(iter(made), 0.3, seed))

    given = document(model="embedded", router={"decode_policy": "shortest_queue"})
    return replace(task(), document=given, requests=arriving, seeds=3, budget=200)


@pytest.mark.slow
def test_stops_are_held_against_the_best_chunk() -> None:
    found = asked(layered())["preempted prompts"]
    assert found.verdict.against in {f"classes first, chunks of {chunk}" for chunk in CHUNKS}
    assert found.verdict.ratio is not None and found.verdict.ratio.value < 1.2
    assert "a layer of it" in found.because
    none = replace(layered(), requests=task().requests)
    assert "--ls-share" in left_out(none)["preempted prompts"]


def expert_task() -> Task:
    made = in_flight(experts=SimulatedExperts.of_profile(Path("profiles/embedded")))
    given = document(model="embedded", **EMBEDDED)
    cost = Linear(
        decode=Decode(base=0.002, per_request=1e-5, per_distinct=1e-4),
        prefill=Prefill(base=0.001, per_token=1e-6),
    )
    return replace(made, document=given, cost=cost, seeds=3, budget=200)


@pytest.mark.slow
def test_locality_pays_for_the_capturer() -> None:
    free, dear = (asked(expert_task(), share)["expert locality"] for share in (0.0, 9.0))
    assert free.verdict.price is not None and dear.verdict.price is not None
    assert dear.verdict.price.value > 1.1 * free.verdict.price.value, "TTFT has the prefill in it"
    assert "of 48 experts a layer" in free.because
    assert "--experts" in left_out(replace(expert_task(), experts=None))["expert locality"]


@pytest.mark.slow
def test_locality_pays_where_experts_are_all_that_a_step_loads() -> None:
    found = asked(expert_task())["expert locality"]
    assert found.verdict.ratio is not None and found.verdict.ratio.high < 1
    assert found.verdict.answer == "on"


@pytest.mark.slow
def test_a_dense_model_has_no_locality(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 64,
              "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100,
              "model_type": "llama"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = document(model={"path": str(tmp_path)}, router={"profile": "embedded"})
    dense = replace(expert_task(), document=given)
    verdict = asked(dense)["expert locality"].verdict
    assert (verdict.answer, verdict.why) == ("off", "the model has no experts")


@pytest.mark.slow
def test_stages_are_proposed_where_steps_mind_lengths() -> None:
    def arriving(seed: int) -> list[Request]:
        return [
            Request(
                i, i / 20, 3000 if (i + seed) % 6 == 0 else 60, 120 if (i + seed) % 6 == 0 else 40
            )
            for i in range(120)
        ]

    cost = Linear(
        decode=Decode(base=0.002, per_kv_token=1e-5, mixed=2e-5),
        prefill=Prefill(base=0.001, per_token=1e-6),
    )
    made = in_flight(cost=cost, requests=arriving)
    found = asked(made)["stages"]
    assert found.verdict.ratio is not None and "four times as long" in found.because
    assert (
        "lengths" in left_out(in_flight())["stages"]
        or "one stage" in left_out(in_flight())["stages"]
    )


def test_a_deployment_that_nothing_can_be_asked_of() -> None:
    plain = {"name": "x", "mode": "plain", "worker": {"kv_tokens": 100, "max_running": 4}}
    with pytest.raises(PlanError, match="mode: plain is not planned"):
        answer(replace(task(), document=plain), 0.0)


def sentences(cost: Linear, **figures: float) -> Arithmetic:
    told = {"kv_mean": 4000.0, "kv_max": 6000.0, "output_tokens_s": 600.0, "tpot_mean": 0.02}
    requests = [Request(0, 0.0, 400, 40), Request(1, 0.0, 600, 60)]
    return Arithmetic(cost, candidate(), requests, [told | figures], None)


def test_sentences_have_the_figures_of_the_costs() -> None:
    """600 tokens/s of 20 ms each are 12 requests in flight, 4 on each of three ranks."""
    say = sentences(COST)
    late = say.of("late dispatch")
    assert "a prompt of 500 tokens runs for 60 ms" in late and "crosses in 2.5 ms" in late
    level = 1e-6 * 2000 / (0.01 + 4e-4 + 1e-6 * 6000)
    assert f"1.50 times the mean KV: level, a step of 16.4 ms would take {100 * level:.1f} %" in (
        say.of("level KV")
    )
    assert "525 tokens moves in 2.52 ms, 0.2 decode steps" in say.of("moves")
    assert "a pass over 8,192 tokens takes 829 ms" in say.of("preempted prompts")
    assert "does not mind how long" in say.of("stages")
    assert say.of("classes") == ""


def test_a_step_that_minds_lengths_says_how_much() -> None:
    mixed = Linear(
        decode=Decode(base=0.01, per_kv_token=1e-6, mixed=1e-6),
        prefill=Prefill(base=0, per_token=0),
    )
    more = 1e-6 * 3000 / (0.01 + 1e-6 * 4000)
    assert f"{100 * more:.1f} % more where one request is four times" in (
        sentences(mixed).of("stages")
    )


def with_draft(accepted: float, share: float) -> Task:
    made = in_flight(document=document(speculative="embedded", device="cpu"))
    made = made.sized(seeds=4, workers=None, budget=200, first=2000)
    return replace(made, given=replace(made.given, draft=DraftCosts(accepted, share)))


def test_a_draft_pays_where_a_step_costs_the_same_for_more_tokens() -> None:
    flat = Linear(decode=Decode(base=0.02), prefill=Prefill(base=0.001, per_token=1e-6))
    found = asked(replace(with_draft(2.5, 0.01), cost=flat))["speculative decoding"]
    assert found.verdict.answer == "on" and found.verdict.against == "without a draft"
    assert found.because.startswith("a step of ") and "gives each 2.50 tokens" in found.because
    assert "1.03 times one without" in found.because
    steep = Linear(decode=Decode(base=0.001, per_request=0.001), prefill=flat.prefill)
    found = asked(replace(with_draft(1.5, 0.1), cost=steep))["speculative decoding"]
    assert found.verdict.answer == "off"


def test_costs_that_know_only_the_draft_leave_it_unasked() -> None:
    made = with_draft(2.0, 0.1)
    measured = replace(made, given=replace(made.given, draft=DraftCosts(2.0, measured=True)))
    assert (
        "measured with a draft and the deployment has none"
        in (left_out(measured)["speculative decoding"])
    )
    assert "level KV" in asked(measured)


def test_capturing_lengthens_prefills_alone() -> None:
    plain = load("embedded")
    dear = Captured(plain, 0.5)
    parts = [(100, 0), (30, 200)]
    assert dear.prefill_s(parts) == pytest.approx(1.5 * plain.prefill_s(parts))
    batch = np.array([3]), np.array([900])
    assert dear.decode_s(*batch, 20.0) == plain.decode_s(*batch, 20.0)
    assert dear.transfer_s(500) == plain.transfer_s(500) and dear.join_s(2) == plain.join_s(2)
    assert minds_lengths(dear) == minds_lengths(plain)


@pytest.mark.slow
def test_the_command_prints_the_table_and_writes_no_deployment(tmp_path: Path) -> None:
    file = deployment_file(tmp_path, "")
    told = ("--rate", "20", "--seconds", "6", "--seeds", "2", "--cost", str(tmp_path / "cost.yaml"))
    figures = tmp_path / "systems.json"
    code, printed = command(str(file), *told, "--systems", "--json", str(figures))
    assert code == 0, printed
    assert "which systems can pay for four?" in printed and "level KV: the fullest rank" in printed
    found = json.loads(figures.read_text())
    assert {each["system"] for each in found["answers"]} >= {"late dispatch", "level KV"}
    code, printed = command(str(file), *told, "--systems", "--out", str(tmp_path / "plan.yaml"))
    assert code == 1 and "--systems writes no deployment file" in printed
