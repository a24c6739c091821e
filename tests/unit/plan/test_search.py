"""What the search finds, against all there is."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.plan.tasks import COST, candidate, document, trials
from tests.unit.simulate.fleets import requests
from toolkit.plan.candidate import Candidate, Given
from toolkit.plan.errors import PlanError, Spent
from toolkit.plan.objective import PlanSlo, better, rank
from toolkit.plan.search import Search, choose
from toolkit.plan.space import plain, searched
from toolkit.plan.split import Split, split_of, splits, with_split
from toolkit.plan.trials import Trials

SLO = PlanSlo(0.4, 0.02)


def search(count: int = 150, rate: float = 20.0, slo: PlanSlo = SLO, budget: int = 500) -> Search:
    return Search(trials(count, rate, slo, budget), Given(), first=count)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "rate"), [(6, 30.0), (20, 100.0)])
def test_the_split_is_the_best_of_all_splits(workers: int, rate: float) -> None:
    """By brute force; with 20 workers the search itself plays only some of them."""
    made = search(rate=rate)
    start = document(decode={"kv_tokens": 20_000, "max_running": 16})
    all_ = splits(Candidate.of(start, Given()).deployment, workers)
    found = split_of(made.split(start, all_))
    played = made.trials.done
    every = {each: made.rank(Candidate.of(with_split(start, each), Given())) for each in all_}
    assert every[found] == min(every.values())
    assert every[found] < min(every[all_[0]], every[all_[-1]]), "neither end is best"
    assert played == len(all_) if workers == 6 else played < len(all_) * 0.8


@pytest.mark.slow
def test_policies_and_knobs_leave_the_baseline_behind() -> None:
    made = search()
    own = candidate()
    knobs = searched(own, splits(own.deployment), local=False)
    arms = made.arms(plain(own.document), knobs)
    start = made.rank(Candidate.of(plain(own.document), Given()))
    assert len(arms) == 2
    assert all(better(made.rank(Candidate.of(arm, Given())), start) for arm in arms)
    assert split_of(arms[0]).prefill > 1


def test_the_same_simulation_is_run_once() -> None:
    made = trials()
    for _ in range(3):
        made.play(candidate(), 0)
        made.play(candidate(router={"prefill_policy": "round_robin", "decode_policy": "level"}), 0)
    made.play(candidate(), 0, first=10_000)  # as many as there are
    assert made.done == 1
    made.play(candidate(), 1)
    made.play(candidate(), 0, first=50)
    assert made.done == 3


def test_every_candidate_sees_the_same_requests() -> None:
    made = trials(count=80)
    figures = [
        made.play(candidate(router={"decode_policy": name}), 5) for name in ("level", "random")
    ]
    assert figures[0]["requests"] == figures[1]["requests"] == 80
    sent: list[list[tuple[float, int]]] = []

    def noted(seed: int) -> Iterator[Any]:
        sent.append([])
        for request in requests(80, seed=seed):
            sent[-1].append((request.arrived, request.prompt))
            yield request

    again = Trials(COST, noted, PlanSlo(), 10)
    for name in ("level", "random"):
        again.play(candidate(router={"decode_policy": name}), 5)
    assert len(sent) == 3 and sent[0] == sent[1] == sent[2] and len(sent[0]) == 80


def test_no_more_simulations_than_allowed() -> None:
    made = search(budget=4)
    own = candidate()
    knobs = searched(own, splits(own.deployment), local=False)
    assert made.arms(plain(own.document), knobs)
    assert made.trials.done == 4
    with pytest.raises(Spent, match="--budget"):
        made.trials.play(own, 9)


def test_nobody_arrives() -> None:
    with pytest.raises(PlanError, match="no request arrives"):
        Trials(COST, lambda seed: iter(()), PlanSlo(), 10).play(candidate(), 0)


def test_of_equal_ones_the_first_is_kept() -> None:
    made = trials(count=40, rate=1.0)
    first, second = candidate(), candidate(decode={
        "replicas": 3, "kv_tokens": 20_001, "max_running": 16})  # fmt: skip
    assert choose(made, [first, second], [1, 2])[0] is first
    assert choose(made, [second, first], [1, 2])[0] is second


def figures(share: float, e2e: float) -> list[dict[str, float]]:
    return [{"good_share": share, "e2e_mean": e2e}]


def test_good_requests_come_first_then_time() -> None:
    slo, none = PlanSlo(ttft=1.0), PlanSlo()
    fast, good = figures(0.5, 1.0), figures(0.9, 5.0)
    assert better(rank(good, slo), rank(fast, slo)) and not better(rank(fast, slo), rank(good, slo))
    assert better(rank(fast, none), rank(good, none))
    assert better(rank(figures(0.9, 4.0), slo), rank(figures(0.9004, 5.0), slo)), "a few requests"
    assert not better(rank(figures(0.9, 4.99), slo), rank(good, slo)), "not worth a change"


@pytest.mark.parametrize(
    "wrong", [{"ttft": 0.0}, {"tpot": -1.0}, {"attainment": 0.0}, {"attainment": 1.1}]
)
def test_objectives_that_make_no_sense(wrong: Any) -> None:
    with pytest.raises(PlanError, match="must"):
        PlanSlo(**wrong)


def test_splits_of_one_are_left_alone() -> None:
    assert split_of(search().split(document(), (Split(1, 3),))) == Split(1, 3)
