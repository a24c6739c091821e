"""Whole plans: paired with the baseline, the same again, what matters, what would be needed."""

from typing import Any

import pytest

from tests.present import present
from tests.unit.plan.tasks import candidate, document, task, trials
from toolkit.bench.stats import paired_ratio
from toolkit.plan.candidate import Candidate, Given
from toolkit.plan.errors import PlanError
from toolkit.plan.knob import Knob
from toolkit.plan.matter import effects, improvement
from toolkit.plan.needs import bounds, needs
from toolkit.plan.objective import PlanSlo, better, rank
from toolkit.plan.planner import make
from toolkit.plan.search import Search
from toolkit.plan.space import searched
from toolkit.plan.split import split_of, splits, with_split
from toolkit.plan.tables import head, prediction, refusal, sentences
from toolkit.simulate.of_deployment import CPU_HOP_S

SLO = PlanSlo(0.4, 0.025)


@pytest.fixture(scope="module")
def planned() -> Any:
    return make(task(slo=SLO))


@pytest.mark.slow
def test_the_plan_is_better_than_the_baseline_by_paired_seeds(planned: Any) -> None:
    assert planned.met and planned.needs is None
    router = planned.baseline.fleet.router
    assert router.prefill_policy == "round_robin"
    assert set(planned.balancers) == {"shortest_queue", "kv_shortest_queue", "least_tokens"}
    assert planned.balancers[router.decode_policy] == planned.before
    best = min(rank(figures, SLO) for figures in planned.balancers.values())
    assert not better(best, rank(planned.before, SLO)), "the best of them is the baseline"
    assert planned.to_json()["balancers"].keys() == planned.balancers.keys()
    assert split_of(planned.baseline.document) == (1, 3), "the file's own"
    assert [each["requests"] for each in (*planned.before, *planned.after)] == [120] * 4
    gain = planned.gain("e2e_mean")
    assert gain == paired_ratio(
        [each["e2e_mean"] for each in planned.after], [each["e2e_mean"] for each in planned.before]
    )
    assert gain.pairs == 2 and gain.value < 0.9 and planned.gain("goodput_s").value > 2
    # Not from the search's own records: played once more.
    fresh = trials(120, 28.0, SLO)
    assert planned.before == fresh.all(planned.baseline, [1, 2])
    assert planned.after == fresh.all(planned.plan, [1, 2])
    assert planned.simulations <= 60
    assert planned.plan.workers == 4


@pytest.mark.slow
def test_equal_seeds_give_equal_plans(planned: Any) -> None:
    again = make(task(slo=SLO))
    assert again.plan.document == planned.plan.document
    assert again.to_json() == planned.to_json()


@pytest.mark.slow
def test_all_is_said(planned: Any) -> None:
    said = "\n".join(sentences(planned))
    assert f"plan: {planned.plan}" in said and "baseline: 1 prefill + 3 decode" in said
    assert "TTFT <= 400 ms and TPOT <= 25 ms: " in said and "90.0 % are asked for" in said
    assert prediction(planned).row_count == 9
    unlimited = make(task(60, 5.0))
    assert prediction(unlimited).row_count == 7, "no goodput without limits"
    assert any("Predicted for" in line for line in head(planned, "toolkit plan x", "x"))
    assert set(planned.to_json()["plan"]["predicted"]) >= {"ttft_p99", "goodput_s", "tpot_mean"}


def test_a_budget_that_predicts_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="--budget 15 is too few with 2 seeds: 20"):
        make(task(first=10).sized(2, None, 15, 100))
    assert make(task(20).sized(2, None, 20, 100)).simulations <= 20


def test_the_router_lets_in_what_is_in_flight() -> None:
    slow = task(300, 400.0).sized(1, None, 14, 60)
    made = make(slow)
    room = made.plan.document["router"]["max_inflight"]
    assert room >= 2 * made.rate * made.after[0]["e2e_mean"] > room / 2
    assert any("router.max_inflight" in text for text in made.remarks)


# ---- closed loops ----


@pytest.mark.slow
def test_a_closed_loop_is_planned_for_so_many_at_a_time() -> None:
    made = make(task(120, 28.0, in_flight=12))
    assert made.met and made.after == trials(120, in_flight=12).all(made.plan, [1, 2])
    assert made.after != trials(120, 28.0).all(made.plan, [1, 2])
    assert made.rate == pytest.approx(
        12 / made.to_json()["plan"]["predicted"]["e2e_mean"]["e2e_mean"]
    )
    assert made.load == f"12 requests in flight, {made.rate:.3g} requests/s"
    assert f"predicted for {made.load}, 2 seeds" in str(prediction(made).title)
    assert made.to_json()["in_flight"] == 12
    assert make(task(120, 900.0, in_flight=12)).after == made.after, "times are not looked at"


@pytest.mark.slow
def test_how_many_at_a_time_are_served_holds() -> None:
    slo = PlanSlo(0.4, 0.025)
    made = make(task(100, 1.0, slo=slo, in_flight=64).sized(2, None, 400, 100))
    assert not made.met and made.needs is not None and made.needs.rate is not None
    count = round(made.needs.rate * 64)
    assert 1 <= count < 64

    def serves(flying: int) -> bool:
        return slo.met(trials(100, 1.0, slo, in_flight=flying).all(made.plan, [1, 2]))

    assert serves(count) and not serves(max(count + 1, round(count * 1.06)))
    said = "\n".join(refusal(made))
    assert f"of this number in flight so, {count} at a time" in said


# ---- what matters ----


def search(count: int, rate: float, slo: PlanSlo) -> Search:
    return Search(trials(count, rate, slo), Given(), count)


def knobs(plan: Candidate) -> dict[str, Knob]:
    found = searched(plan, splits(plan.deployment), local=False)
    return {knob.name: knob for knob in found}


@pytest.mark.slow
def test_gimbals_thresholds_do_not_matter_at_low_load_and_the_split_does() -> None:
    plan = candidate(router={"decode_policy": "gimbal"})
    all_ = knobs(plan)
    names = ("gimbal kv", "gimbal diff", "gimbal load", "split")
    found, left = effects(search(150, 12.0, SLO), plan, [all_[n] for n in names], [1, 2, 3])
    assert not left
    assert [effect.verdict for effect in found] == ["does not matter"] * 3 + ["matters"]
    assert found[0].latency == (1.0, 1.0) and found[3].latency[1] > 1.02
    assert found[0].best == found[0].chosen


def test_a_neighbour_that_is_better_beyond_doubt_is_moved_to() -> None:
    plan = candidate()
    all_ = knobs(plan)
    made = search(150, 20.0, SLO)
    found, _ = effects(made, plan, [all_["split"]], [1, 2, 3])
    figures = made.trials.all(plan, [1, 2, 3])
    better = improvement(found, figures, SLO)
    assert better is not None and split_of(better.document).prefill > 1
    same, _ = effects(made, plan, [all_["s_greedy"]], [1, 2, 3])
    assert improvement(same, figures, SLO) is None


def test_knobs_without_a_simulation_left_are_named() -> None:
    plan = candidate()
    made = search(50, 5.0, SLO)
    made.trials.budget = made.trials.ceiling = 3
    found, left = effects(made, plan, list(knobs(plan).values()), [1])
    assert left and not {effect.name for effect in found} & set(left)


# ---- what would be needed ----


@pytest.mark.slow
def test_more_workers_or_less_traffic_and_both_numbers_hold() -> None:
    """The rate and the workers that are named meet the objectives, a bit more and one fewer not."""
    slo = PlanSlo(0.25, 0.025, 0.9)
    made = make(task(100, 60.0, slo=slo).sized(2, None, 400, 100))
    assert not made.met and made.needs is not None and not made.needs.spent
    wanted = made.needs
    fresh = trials(100, 60.0, slo)
    assert wanted.split is not None and wanted.workers == sum(wanted.split) > 4
    enough = Candidate.of(with_split(made.plan.document, wanted.split), Given())
    assert slo.met(fresh.all(enough, [1, 2]))
    for fewer in splits(enough.deployment, wanted.workers - 1):
        less = Candidate.of(with_split(made.plan.document, fewer), Given())
        assert not slo.met(fresh.all(less, [1, 2])), fewer
    assert wanted.rate is not None and 0 < wanted.rate < 1
    assert slo.met(fresh.all(made.plan, [1, 2], wanted.rate))
    assert not slo.met(fresh.all(made.plan, [1, 2], wanted.rate * 1.06))
    said = "\n".join(refusal(made))
    assert "no setting of these 4 workers meets TTFT <= 250 ms and TPOT <= 25 ms" in said
    assert f"{wanted.workers} workers meet it: {wanted.split.prefill} prefill" in said
    assert f"{wanted.rate * made.rate:.3g} requests/s" in said
    assert not made.effects


@pytest.mark.parametrize(
    ("slo", "what"),
    [(PlanSlo(0.02, 1.0), "TTFT"), (PlanSlo(1.0, 0.005), "TPOT"), (PlanSlo(9.0, 9.0), "")],
)
def test_what_one_request_alone_misses_no_number_of_workers_mends(slo: Any, what: str) -> None:
    found = bounds(search(40, 5.0, slo), candidate())
    assert [bound.what for bound in found] == ([what] if what else [])
    if what == "TTFT":
        least = 0.01 + 1e-4 * found[0].prompt + 2 * CPU_HOP_S  # to the worker, and its token back
        assert found[0].seconds == pytest.approx(least, rel=0.01) and found[0].share == 0
    if what == "TPOT":
        assert 0.0101 < found[0].seconds < 0.012


def test_a_bound_is_said_instead_of_numbers() -> None:
    made = make(task(40, 5.0, slo=PlanSlo(tpot=0.005)))
    assert not made.met and present(made.needs).workers is None and present(made.needs).rate is None
    said = "\n".join(refusal(made))
    assert "no number of workers and no less traffic helps" in said
    assert "TPOT is limited to 5 ms" in said and "all workers to itself" in said


def test_needs_within_a_budget() -> None:
    made = search(100, 60.0, PlanSlo(0.25, 0.025))
    made.trials.budget = made.trials.ceiling = 6
    found = needs(made, candidate(), [1, 2])
    assert found.spent and found.workers is None


def test_the_files_own_settings_are_kept_where_nothing_is_better() -> None:
    """Idle workers: whoever decodes, nothing changes."""
    made = make(task(30, 0.5, first=30))
    assert made.plan.fleet.decode == candidate().fleet.decode
    assert made.plan.document.keys() >= document().keys()
    assert present(made.gain("e2e_mean")).value > 0.9
