"""Requests that move between ranks: nothing is lost or there twice, what a move takes, and who
makes it."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from tests.kernels import examples
from tests.unit.html_page import Page
from tests.unit.simulate.fleets import (
    ACCEPTED,
    COST,
    beyond,
    drafting,
    fleet,
    held_by,
    plain,
    requests,
)
from toolkit.cli.main import app
from toolkit.decide import messages as m
from toolkit.resources import profiles_dir
from toolkit.settings.deployment import Deployment
from toolkit.settings.router.rebalance import Rebalance
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import DecodeFleet, Fleet, RouterFleet, WorkerFleet
from toolkit.simulate.loop import Loop
from toolkit.simulate.of_deployment import fleet_of
from toolkit.simulate.plain import PlainRank
from toolkit.simulate.request import Request
from toolkit.simulate.router import SimulatedRouter
from toolkit.simulate.simulation import Simulation
from toolkit.simulate.worker_states import NotBegun
from toolkit.simulate.workloads.patterns import with_rows

STAGES = ({"upto": 250, "replicas": 1}, {"upto": 600, "replicas": 1}, {"replicas": 1})
POLICIES = ("round_robin", "br0@0", "brh@learned", "level", "eldr")
EXPERTS = SimulatedExperts.of_profile(profiles_dir() / "embedded")
LONG = {"prompt": 150, "output": 250}


def moving(
    mode: str, policy: str, stages: bool, kind: str = "direct", routers: int = 1, **sizes: Any
) -> Fleet:
    """Three workers, with stages or rebalancing."""
    laid = {"stages": STAGES} if stages else {"replicas": 3}
    router: dict[str, Any] = {"decode_policy": policy, "rebalance": not stages, "moves": kind}
    if routers > 1:
        router |= {"routers": routers, "report_s": 0.02}
    if mode == "plain":
        made = plain(policy, **laid, **sizes)
        return made.model_copy(update={"router": RouterFleet(**router)})
    return fleet(laid | sizes, router, {"replicas": 2, "chunk": 512, "kv_tokens": 20_000})


def looked(check: Callable[[Loop], None]) -> Callable[[Loop], None]:
    """`Loop._plan`, with a look at the books before."""
    plan = Loop._plan

    def checked(group: Loop) -> None:
        check(group)
        plan(group)

    return checked


def books(group: Loop) -> None:
    for rank in group.ranks:
        held = held_by(group, rank)
        assert group.kv[rank.place] == held >= 0
        assert group.requests[rank.place] == len(rank.running)
        assert len(rank.running) + rank.coming <= rank.slots
        assert group.coming[rank.place] >= group.expected[rank.place] >= 0 <= rank.coming  # type: ignore[attr-defined]
        if len(rank.running) > 1:
            # One alone may be more than a pool, with those on their way to it.
            stepping = getattr(group, "_stepping", [1] * len(group.ranks))[rank.place]
            steps = len(rank.running) * (int(stepping) + beyond(group))
            assert held + int(group.coming[rank.place]) + steps <= rank.capacity
        if isinstance(rank, PlainRank):
            assert 0 <= rank.shared <= held


def played(
    made: Fleet, asked: Iterator[Request], seed: int = 0
) -> tuple[list[Request], Simulation]:
    """Run it, with a look at every boundary; its requests."""
    kept: list[Request] = []

    def noted() -> Iterator[Request]:
        for request in asked:
            kept.append(request)
            yield request

    experts = EXPERTS if made.router.decode_policy == "eldr" else None
    given_ = noted() if experts is None else with_rows(noted(), experts, seed)
    simulation = Simulation(made, COST, given_, experts, seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Loop, "_plan", looked(books))
        to_its_end(simulation)
    return kept, simulation


def to_its_end(simulation: Simulation) -> None:
    """With the step after the last answer's end."""
    simulation.run()
    simulation.events.run(simulation.events.now + 1.0)


def nothing_is_left(kept: list[Request], simulation: Simulation) -> None:
    assert simulation.recorder.ended == len(kept)
    assert len({request.number for request in kept}) == len(kept)
    for request in kept:
        assert request.arrived < request.prefilled <= request.first_token <= request.ended
        assert request.generated <= request.output
        group = simulation.groups[0]
        least = (request.output - 1) / group.pace - group.scheduling.notices
        least *= COST.decode.base
        assert request.ended - request.first_token >= least - 1e-9
    for group in simulation.groups:
        for books_ in (group.requests, group.kv, group.coming, group.expected):
            assert not books_.any()
        assert not group._awaited and not group._ends and not group._leaves
    assert all(not p.held_tokens and not p.prompts.waiting for p in simulation.prefills)
    assert simulation.moves is not None and not simulation.moves.under_way
    for router in simulation.routers:
        nobody_is_left(router)


def nobody_is_left(router: SimulatedRouter) -> None:
    for state in router.rank_states:
        assert not state.inflight and not state.inflight_tokens and not state.unbegun
        assert state.ledger.there == NotBegun()
        assert not state.rank.coming and not state.rank.running and not state.rank.retracted
    if router.followed is not None:
        assert not len(router.followed)
    locality = router.decode_policy.locality
    if locality is not None:
        assert locality.inflight_signatures is not None and locality.centroids is not None
        assert not any(
            locality.inflight_signatures.count(group) for group in locality.centroids.owner
        )


@pytest.mark.slow
@given(
    seed=st.integers(0, 1000),
    mode=st.sampled_from(["pd", "plain"]),
    policy=st.sampled_from(POLICIES),
    stages=st.booleans(),
    kind=st.sampled_from(["direct", "replay"]),
    slots=st.integers(2, 9),
    capacity=st.integers(1200, 9000),
    dp=st.integers(1, 2),
    attention=st.booleans(),
    loop=st.sampled_from(["overlap", "cpu", "plain"]),
    accepted=ACCEPTED,
    routers=st.integers(1, 3),
)
@settings(max_examples=examples(60), deadline=None)
def test_every_request_ends_once_and_no_kv_is_left(
    seed: int,
    mode: str,
    policy: Any,
    stages: bool,
    kind: str,
    slots: int,
    capacity: int,
    dp: int,
    attention: bool,
    loop: str,
    accepted: float | None,
    routers: int,
) -> None:
    if mode == "plain" and policy == "eldr":
        policy = "level"
    sizes = {"slots": slots, "kv_tokens": capacity, "dp": dp, "dp_attention": attention}
    if mode == "pd":
        sizes["reserve"] = 8
    made = moving(mode, policy, stages, kind, routers, loop=loop, **sizes)
    made = made.model_copy(update={"drafting": drafting(accepted)})
    nothing_is_left(*played(made, requests(40, 20.0, seed, **LONG), seed))


APART = ({"upto": 100_000, "replicas": 1}, {"replicas": 1})
"""All are bound to the first, and nobody outgrows it."""
SLOW = COST.model_copy(
    update={
        "decode": COST.decode.model_copy(update={"per_request": 0.0, "per_kv_token": 0.0}),
        "transfer": COST.transfer.model_copy(update={"base": 0.001, "per_token": 1e-3}),
    }
)
"""Every step takes STEP; KV takes a second for 1000 tokens."""
STEP, SENT = 0.01, 0.001


def asked_to_move(
    request: Request, at: float, kind: str = "direct", mode: str = "pd", loop: str = "plain"
) -> tuple[Simulation, list[int]]:
    """One request that is to go to the other rank at that time; KV tokens of both ranks over
    time."""
    router = RouterFleet(decode_policy="round_robin", moves=kind)  # type: ignore[arg-type]
    if mode == "pd":
        made = Fleet(decode=DecodeFleet(stages=APART, loop=loop), router=router)  # type: ignore[arg-type]
    else:
        made = Fleet(worker=WorkerFleet(stages=APART, loop=loop), router=router)  # type: ignore[arg-type]
    simulation = Simulation(made, SLOW, [request])
    first, second = simulation.ranks
    held: list[int] = []

    def look() -> None:
        # It is in one place at a time, and with its place it is held twice while it is sent.
        assert not (first.running and second.running)
        held.append(len(first.running) - len(second.running))
        simulation.events.after(0.001, look)

    def ask() -> None:
        said = simulation.groups[0].said(request)
        seen = m.SeenRequest(request.number, said, "")
        simulation.router._tell(m.MoveAsked(1, seen, (second.key,)))

    simulation.events.at(at, ask)
    simulation.events.at(at, look)
    to_its_end(simulation)
    assert simulation.recorder.ended == 1
    assert not any(group.coming.any() or group.kv.any() for group in simulation.groups)
    return simulation, held


@pytest.mark.parametrize("mode", ["pd", "plain"])
def test_the_source_decodes_on_while_kv_is_sent(mode: str) -> None:
    request = Request(0, 0.0, 200, 300)
    simulation, held = asked_to_move(request, 1.0, mode=mode)
    assert simulation.moves is not None
    # Some 0.2 s for 200 prompt tokens and those of the answer by then, and a few more ms.
    said = 200 + (1.0 - request.first_token) / STEP
    there = held.count(1) * 0.001
    assert there == pytest.approx(said * 1e-3 + SENT, abs=2 * STEP)
    # Then the rows of the steps meanwhile, of which each takes a ms, too.
    stall = simulation.moves.figures.result()["move_stall_mean"]
    assert stall == pytest.approx(SENT + there / STEP * 1e-3 + STEP, abs=1.5 * STEP)
    took = request.ended - request.first_token
    assert took == pytest.approx(299 * STEP + stall - STEP, abs=STEP / 10)


@pytest.mark.parametrize("loop", ["overlap", "cpu"])
def test_a_stall_is_about_two_steps_and_what_was_sent_last(loop: str) -> None:
    request = Request(0, 0.0, 20, 300)
    simulation, _ = asked_to_move(request, 1.0, loop=loop)
    assert simulation.moves is not None
    stall = simulation.moves.figures.result()["move_stall_mean"]
    assert 1.0 * STEP < stall < 4 * STEP


@pytest.mark.parametrize("mode", ["pd", "plain"])
def test_a_replay_is_prefilled_again(mode: str) -> None:
    request = Request(0, 0.0, 400, 300)
    simulation, held = asked_to_move(request, 1.0, "replay", mode)
    assert simulation.moves is not None
    assert held.count(1) * 0.001 <= 3 * STEP
    said = (1.0 - request.first_token) / STEP
    if mode == "pd":
        # Only the answer is computed, and all is sent.
        stall = SLOW.prefill_s([(round(said), 0)]) + SENT + (400 + said) * 1e-3 + STEP
    else:
        stall = SLOW.prefill_s([(400 + round(said), 0)])
    assert simulation.moves.figures.result()["move_stall_mean"] == pytest.approx(
        stall, abs=2.5 * STEP
    )


def test_who_ends_on_the_way_is_given_up() -> None:
    request = Request(0, 0.0, 500, 40)
    simulation, held = asked_to_move(request, 0.9)
    assert request.ended < 0.9 + 0.5 and -1 not in held
    assert simulation.moves is not None and simulation.moves.figures.given_up == 1
    assert simulation.moves.figures.result()["moves"] == 0
    assert request.ended - request.first_token == pytest.approx(39 * STEP, abs=2 * STEP)


@pytest.mark.parametrize("mode", ["pd", "plain"])
@pytest.mark.parametrize("policy", ["shortest_queue", "level"])
def test_requests_are_where_their_length_belongs(mode: str, policy: str) -> None:
    made = moving(mode, policy, True, slots=200, kv_tokens=200_000)
    layout = (made.worker or made.decode).layout
    assert layout is not None
    kept: list[Request] = []
    simulation = Simulation(made, COST, iter(()))
    outside = Counter()  # type: ignore[var-annotated]

    def asked() -> Iterator[Request]:
        for request in requests(150, 10.0, **LONG):
            kept.append(request)
            yield request

    simulation._requests = asked()

    def look() -> None:
        each = ((rank, group) for group in simulation.groups for rank in group.ranks)
        for stage, (rank, group) in enumerate(each):
            for request in rank.running:
                length = group.length_of(request)
                outside[layout.stage_of(length) - stage] += 1
        simulation.events.after(0.1, look)

    simulation.events.at(0.05, look)
    to_its_end(simulation)
    nothing_is_left(kept, simulation)
    assert set(outside) <= {0, 1}  # some have outgrown theirs since the last look
    assert outside[1] < 0.15 * outside[0]
    assert simulation.moves is not None
    assert set(simulation.moves.figures.moves) == {"outgrown"}
    crossed = sum(
        layout.stage_of(r.prompt + r.output - 40) - layout.stage_of(r.prompt + 1) for r in kept
    )
    assert simulation.moves.figures.moves.total() >= 0.8 * crossed > 30


def test_rebalancing_evens_loads_out() -> None:
    """Round robin binds blindly; requests move until no rank holds much more than the others."""
    spreads = []
    for rebalance in (True, False):
        made = fleet(
            {"replicas": 4, "slots": 64}, {"decode_policy": "round_robin", "rebalance": rebalance}
        )
        simulation = Simulation(made, COST, requests(600, 20.0, **LONG))
        spreads.append(simulation.run().result()["kv_spread"])
        assert bool(simulation.move_figures) == rebalance
    assert spreads[0] < spreads[1] / 2


@pytest.mark.parametrize("mode", ["pd", "plain"])
def test_equal_seeds_give_equal_moves(mode: str) -> None:
    made = moving(mode, "level", True, slots=16, kv_tokens=9000)
    runs = [Simulation(made, COST, requests(100, **LONG), seed=3) for _ in range(2)]
    results = [run.run().result() | run.move_figures for run in runs]
    assert results[0] == results[1] and results[0]["moves"] > 20


def test_stages_say_how_many_workers_there_are() -> None:
    assert DecodeFleet(stages=STAGES).replicas == 3  # type: ignore[arg-type]
    assert WorkerFleet(stages=STAGES, replicas=3).layout == DecodeFleet(stages=STAGES).layout  # type: ignore[arg-type]
    assert DecodeFleet(replicas=2).layout is None
    with pytest.raises(ValidationError, match="leave replicas out"):
        DecodeFleet(stages=STAGES, replicas=4)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="leave its upto out"):
        DecodeFleet(stages=STAGES[:2])  # type: ignore[arg-type]


def test_a_file_says_who_moves_when_and_how() -> None:
    def described(**router: Any) -> Fleet:
        sizes = {"kv_tokens": 20_000, "max_running": 16}
        decode = {"stages": [{"upto": 200}, {}], **sizes}
        body = {"name": "x", "decode": decode, "router": router}
        return fleet_of(Deployment.model_validate(body))

    made = described(rebalance={"over": 0.5, "every_s": 1.0}, moves="replay")
    assert made.rebalance is not None and made.rebalance.knobs.over == 0.5
    assert made.router.moves == "replay" and described(moves="auto").router.moves == "direct"
    still = described(rebalance=False)
    simulation = Simulation(still, COST, requests(60, 10.0))
    assert still.decode.layout is not None and simulation.run().ended == 60
    assert simulation.moves is None and not simulation.move_figures


def test_bounds_follow_the_lengths_that_run() -> None:
    """All are short: the first stage's bound comes down to share them out."""
    model = Rebalance(qoe=(0.01, 1e-4, 0.0, 0.0, 1e-6), mixed=1e-5, refine_s=0.5, replan_s=0)
    stages = ({"upto": 4000, "replicas": 1}, {"replicas": 1})
    made = Fleet(
        decode=DecodeFleet(stages=stages),  # type: ignore[arg-type]
        router=RouterFleet(decode_policy="kv_shortest_queue", rebalance=model),
    )
    kept: list[Request] = []

    def asked() -> Iterator[Request]:
        for request in requests(200, 20.0, **LONG):
            kept.append(request)
            yield request

    simulation = Simulation(made, COST, asked())
    to_its_end(simulation)
    nothing_is_left(kept, simulation)
    assert simulation.router.stages is not None and simulation.moves is not None
    assert simulation.router.stages.layout.bounds[0] < 2000
    assert simulation.moves.figures.moves["outgrown"] > 10


STAGED = """name: staged
decode:
  stages: [{upto: 1000, replicas: 2}, {}]
  kv_tokens: 80000
  max_running: 64
"""


def test_the_command_says_what_moved(tmp_path: Path) -> None:
    (tmp_path / "staged.yaml").write_text(STAGED)
    (tmp_path / "cost.yaml").write_text(COST.model_dump_json())
    given = ["--cost", str(tmp_path / "cost.yaml"), "--rate", "4", "--seconds", "60"]
    output, report = tmp_path / "out.json", tmp_path / "report.html"
    written = ["--seeds", "1", "--output", str(output), "--report", str(report)]
    done = CliRunner().invoke(app, ["simulate", str(tmp_path / "staged.yaml"), *given, *written])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(output.read_text()).values()
    assert found[0]["moves"] >= found[0]["moves_outgrown"] > 10
    assert found[0]["moved_tokens"] > 3000 and 0 < found[0]["move_stall_mean"] < 0.1
    assert "requests that moved" in done.output
    assert "stall of a move" in " ".join(Page(report.read_text()).words)


def test_ranks_change_stages_when_the_lengths_that_run_change() -> None:
    """Half of the ranks are for the few long requests, until it is planned anew."""
    model = Rebalance(qoe=(0.005, 1e-4, 0.0, 0.0, 1e-7), mixed=1e-5, refine_s=0, replan_s=2.0)
    stages = ({"upto": 2000, "replicas": 2}, {"replicas": 2})
    made = Fleet(
        decode=DecodeFleet(stages=stages, slots=32),  # type: ignore[arg-type]
        router=RouterFleet(decode_policy="kv_shortest_queue", rebalance=model),
    )
    kept: list[Request] = []

    def asked() -> Iterator[Request]:
        for request in requests(400, 30.0, **LONG):
            kept.append(request)
            yield request

    simulation = Simulation(made, COST, asked())
    to_its_end(simulation)
    nothing_is_left(kept, simulation)
    assert simulation.router.stages is not None
    layout = simulation.router.stages.layout
    assert layout != made.decode.layout and layout.ranks == 4
    assert simulation.router.stages.stages == [layout.stage_of_rank(rank) for rank in range(4)]
