"""Classes of simulated requests: where they come from, what router and figures make of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.bench.test_classes import kinds
from tests.unit.bench.test_classes import plain as items
from tests.unit.simulate.fleets import COST, fleet, requests
from toolkit.bench.classes import drawn
from toolkit.bench.errors import BenchError
from toolkit.cli.arriving import Arriving
from toolkit.contract.preempting import Preempting
from toolkit.contract.request_class import RequestClass
from toolkit.decide.requests import WaitStep
from toolkit.settings.deployment import Deployment
from toolkit.simulate.costs.linear import Prefill
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.fleet import Fleet, Stopping
from toolkit.simulate.of_deployment import fleet_of
from toolkit.simulate.request import Request
from toolkit.simulate.session import SimulationSetting, run
from toolkit.simulate.simulation import Simulation
from toolkit.simulate.workloads.classes import with_classes
from toolkit.simulate.workloads.trace import of_trace
from toolkit.simulate.workloads.traffic import RequestKind, TrafficModel, generate

LS, STANDARD, BE = RequestClass.LATENCY_SENSITIVE, RequestClass.STANDARD, RequestClass.BEST_EFFORT
STOPS = Stopping(rules=Preempting(slice=2), layers=24)


def classed(count: int, rate: float, seed: int, share: float = 0.2, **sizes: int) -> list[Request]:
    return list(with_classes(requests(count, rate, seed, **sizes), share, seed))


# ---- where they come from ----


@given(share=st.floats(0, 1), seed=st.integers(0, 1000), count=st.integers(1, 60))
def test_the_simulator_draws_what_the_benchmark_draws(share: float, seed: int, count: int) -> None:
    found = classed(count, 10.0, seed, share)
    assert [r.request_class.value for r in found] == kinds(drawn(items(count), share, seed))


def test_turns_of_a_conversation_are_alike() -> None:
    kind = RequestKind(
        name="chat", share=1, prompt=(300.0, 0.5), answer=(50.0, 0.5), turns=4, pause=1.0
    )
    made = TrafficModel(rate=20.0, seconds=30.0, kinds=(kind,))
    talks: dict[int | None, set[RequestClass]] = {}
    for request in with_classes(generate(made), 0.5):
        talks.setdefault(request.conversation, set()).add(request.request_class)
    assert len(talks) > 50 and None not in talks
    assert all(len(found) == 1 for found in talks.values())
    assert {BE, LS} == set.union(*talks.values())


def trace(path: Path, *classes: str | None) -> Path:
    rows = [
        {"timestamp": 1000 * n, "input_length": 9, "output_length": 2}
        | ({} if kind is None else {"class": kind})
        for n, kind in enumerate(classes)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_trace_carries_classes(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", "best_effort", None, "latency_sensitive", "standard")
    assert [r.request_class for r in of_trace(path)] == [BE, STANDARD, LS, STANDARD]
    table = tmp_path / "t.csv"
    table.write_text("num_prefill_tokens,num_decode_tokens,class\n9,2,best_effort\n9,2,\n")
    arriving = Arriving(trace=table, rate=1.0)
    assert [r.request_class for r in arriving.requests()(0)] == [BE, STANDARD]
    with pytest.raises(BenchError, match=r"t.jsonl:2: .*class"):
        list(of_trace(trace(tmp_path / "t.jsonl", None, "urgent")))


def test_a_class_is_not_drawn_twice(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", None, "best_effort")
    with pytest.raises(SimulateError, match=r"request 1 is best_effort .* leave --ls-share out"):
        list(Arriving(trace=path, ls_share=0.2).requests()(0))
    with pytest.raises(BenchError, match="share from 0 to 1"):
        Arriving(rate=1.0, ls_share=1.2).requests()


# ---- deployment files ----


def deployment(**changes: Any) -> Deployment:
    sizes = {"kv_tokens": 9000, "max_running": 8}
    role = "worker" if changes.get("mode") == "plain" else "decode"
    given = {"name": "x", role: sizes, "router": {"classes": {}}}
    return Deployment.model_validate(given | changes)


def test_a_file_says_who_stops_whom() -> None:
    rules = {"policy": "fair@0.7", "slice": 2, "pauses": 3, "seconds": 1.5, "slo_s": 0.5}
    found = fleet_of(deployment(prefill={"preempt": rules}, device="cuda"))
    assert found.router.classes and found.prefill.loop == "plain"
    assert found.prefill.preempt is not None and found.prefill.preempt.layers == 6
    assert found.prefill.preempt.ahead, "a GPU"
    cost = COST.model_copy(update={"prefill": Prefill(base=0, per_token=1e-5, per_slice=0.001)})
    (worker,) = Simulation(found, cost, iter(())).prefills
    made = worker.preemption
    assert made is not None and made.policy.share == 0.7  # type: ignore[attr-defined]
    assert (made.slice, made.slices, made.boundary_s, made.slo_s) == (2, 3, 0.001, 0.5)
    assert (made.bounds.pauses, made.bounds.seconds) == (3, 1.5)
    assert made.takes_s(1000) == pytest.approx(0.01) and made.ahead


def test_so_do_plain_workers() -> None:
    sizes = {"kv_tokens": 9000, "max_running": 8, "preempt": "strict"}
    found = fleet_of(deployment(mode="plain", worker=sizes, device="cpu"))
    assert found.worker is not None and found.worker.preempt is not None
    assert not found.worker.preempt.ahead and found.worker.loop == "plain"


@pytest.mark.parametrize(
    "more",
    [
        {"tp": 2, "dp": 2, "dp_attention": True},
        {"args": {"pp-size": 2}},
        {"args": {"enable_lora": True}},
    ],
)
def test_between_chunks_only_where_the_worker_falls_back(more: dict[str, Any]) -> None:
    found = fleet_of(deployment(prefill={"preempt": "strict"} | more)).prefill.preempt
    assert found is not None and found.layers == 1


def test_files_without_it_know_no_classes() -> None:
    found = fleet_of(deployment(router="toolkit", device="cuda"))
    assert not found.router.classes and found.prefill.preempt is None
    assert found.prefill.loop == "overlap"


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(SimulateError, match=r"without router\.classes"):
        fleet_of(deployment(prefill={"preempt": "strict"}, router="toolkit"))
    with pytest.raises(SimulateError, match="how many layers"):
        fleet_of(deployment(prefill={"preempt": "strict"}, model="/models/none"))
    own = fleet_of(deployment(prefill={"preempt": "no.such:policy"}))
    with pytest.raises(ValueError, match=r"no\.such:policy"):
        Simulation(own, COST, iter(()))


def test_a_stream_begins_with_the_token_of_its_prefill_worker() -> None:
    """As the router has it, unless the file says otherwise."""

    def first(**router: Any) -> float:
        found = fleet_of(deployment(router={"kind": "toolkit"} | router, device="cuda"))
        (request,) = timed(found, [Request(0, 0.0, 1000, 5)])
        assert request.prefilled < request.ended
        return request.ttft - (request.prefilled - request.arrived)

    assert first() == pytest.approx(0.001)
    assert first(first_token="decode") > 0.003 < first(dispatch="concurrent")


# ---- the router ----


def timed(found: Fleet, made: list[Request]) -> list[Request]:
    Simulation(found, COST, iter(made)).run()
    return made


def pd(classes: bool = True, **router: Any) -> Fleet:
    return fleet({"slots": 64}, {"classes": classes, "parked_per_prefill": 1} | router)


def test_best_effort_requests_wait_behind_all_others_in_the_router() -> None:
    asked = (BE, BE, STANDARD, LS)

    def order(classes: bool) -> list[int]:
        made = [Request(n, 0.0, 2000, 2, request_class=kind) for n, kind in enumerate(asked)]
        timed(pd(classes), made)
        return [r.number for r in sorted(made, key=lambda r: r.prefill_began)]

    assert order(False) == [0, 1, 2, 3]
    assert order(True) == [0, 2, 3, 1]


def test_they_leave_one_credit_in_eight_to_others() -> None:
    made = [Request(n, 0.0, 4000, 2, request_class=BE) for n in range(10)]
    late = Request(10, 0.001, 100, 2, request_class=LS)
    found = fleet({"slots": 64}, {"classes": True, "parked_per_prefill": 8})
    simulation = Simulation(found, COST, iter([*made, late]))
    simulation.run(until=0.003)
    assert simulation.prefills[0].view(True).inflight == 8, "seven, and the latency-sensitive one"
    waits = simulation.router.decider.attempts.requests.values()
    assert sum(each.step is WaitStep.PREFILL for each in waits) == 3


def test_the_pool_places_them_last() -> None:
    def bound(classes: bool) -> list[int]:
        router = {"classes": classes, "decode_policy": "level", "parked_per_prefill": 8}
        kinds = (BE, BE, BE, LS)
        made = [Request(n, 0.0, 100, 40, request_class=kind) for n, kind in enumerate(kinds)]
        timed(fleet({"slots": 1, "kv_tokens": 9000}, router), made)
        return [r.number for r in sorted(made, key=lambda r: r.bound)]

    assert bound(True) == [3, 0, 1, 2]
    assert bound(False) == [0, 1, 2, 3]


def test_a_worker_that_stops_them_is_free_for_who_is_latency_sensitive() -> None:
    """Two workers: one has two long best-effort prompts, the other one of its own class."""

    def place(stops: Stopping | None) -> int:
        found = fleet(
            {"slots": 8},
            {"classes": True, "prefill_policy": "shortest_queue", "hop_s": 0.0},
            {"replicas": 2, "preempt": stops},
        )
        made = [
            Request(0, 0.0, 8000, 2, request_class=BE),
            Request(1, 0.001, 8000, 2, request_class=LS),
            Request(2, 0.002, 8000, 2, request_class=BE),
            Request(3, 0.003, 100, 2, request_class=LS),
        ]
        simulation = Simulation(found, COST, iter(made))
        simulation.run(until=0.004)
        return int(simulation.router.prefill_of(made[3]).name[-1])

    assert place(STOPS) == 0 and place(None) == 1
    views = fleet({"slots": 8}, {"classes": True}, {"preempt": STOPS})
    worker = Simulation(views, COST, iter(())).prefills[0]
    worker.take(Request(0, 0.0, 800, 2, request_class=BE))
    assert worker.view(True).inflight == 1 and worker.view(True, urgent=True).inflight == 0


# ---- figures ----


def made_of(share: float) -> Any:
    def arriving(seed: int) -> Iterator[Request]:
        return iter(classed(150, 30.0, seed, share, prompt=1500))

    return arriving


def test_every_figure_is_there_by_class_and_the_parts_are_the_whole() -> None:
    setting = SimulationSetting(
        fleet({"slots": 32}, {"classes": True}, {"preempt": STOPS}),
        COST,
        made_of(0.3),
        ["level", "round_robin"],
        seeds=2,
        slo=(0.5, 0.1, 0.05),
    )
    outcome = run(setting)
    assert outcome.classes == ["latency_sensitive", "best_effort"]
    for figures in (each for arm in outcome.figures for each in arm):
        both = [f"{name}." for name in outcome.classes]
        count = [figures[f"{name}requests"] for name in both]
        assert sum(count) == figures["requests"] == 150
        for mean in ("ttft_mean", "tpot_mean", "e2e_mean", "good_share"):
            whole = sum(n * figures[f"{name}{mean}"] for n, name in zip(count, both, strict=True))
            assert whole / 150 == pytest.approx(figures[mean], rel=0.02), mean
        assert sum(figures[f"{name}goodput_s"] for name in both) == pytest.approx(
            figures["goodput_s"]
        )


def test_those_latency_sensitive_have_a_limit_of_their_own() -> None:
    def shares(*slo: float) -> tuple[float, float]:
        setting = SimulationSetting(fleet(), COST, made_of(0.3), ["level"], seeds=1, slo=slo)
        found = run(setting).figures[0][0]
        return found["latency_sensitive.good_share"], found["best_effort.good_share"]

    inf = float("inf")
    assert shares(inf, inf, 1e-6) == (0.0, 1.0)
    assert shares(1e-6, inf, inf) == (0.0, 0.0)
    assert shares(inf, inf, inf) == (1.0, 1.0)


def test_slices_help_who_is_latency_sensitive() -> None:
    def played(stops: Stopping | None) -> dict[str, Any]:
        setting = SimulationSetting(
            fleet({"slots": 64, "replicas": 8}, {"classes": True}, {"preempt": stops}),
            COST,
            lambda seed: iter(classed(200, 25.0, seed, 0.2, prompt=3000)),
            ["level"],
            seeds=1,
        )
        return run(setting).figures[0][0]

    with_, without = played(STOPS), played(None)
    assert with_["latency_sensitive.ttft_mean"] < 0.8 * without["latency_sensitive.ttft_mean"]
    assert with_["best_effort.e2e_mean"] > without["best_effort.e2e_mean"]


def test_requests_without_classes_have_no_such_figures() -> None:
    outcome = run(SimulationSetting(fleet(), COST, lambda seed: requests(30), ["level"], seeds=1))
    assert outcome.classes == [] and not any("." in key for key in outcome.figures[0][0])
