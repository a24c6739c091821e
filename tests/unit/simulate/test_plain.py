"""Workers that prefill and decode both: what a pass does to the steps, who gets in, in which order,
and that nothing is lost."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.kernels import examples
from tests.unit.simulate.fleets import ACCEPTED, COST, drafting, fleet, held_by, plain, requests
from toolkit.cli.main import app
from toolkit.resources import profiles_dir
from toolkit.settings.deployment import Deployment
from toolkit.simulate import loop as loops
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.of_deployment import fleet_of
from toolkit.simulate.plain import PlainGroup, PlainRank
from toolkit.simulate.request import Request
from toolkit.simulate.reserve import NewTokenRatio
from toolkit.simulate.session import with_policies
from toolkit.simulate.simulation import Simulation
from toolkit.simulate.worker_states import NotBegun

POLICIES = ("round_robin", "shortest_queue", "br0@0", "brh@learned", "gimbal", "least_tokens")
STEP = 0.01
EVEN = COST.model_copy(
    update={"decode": COST.decode.model_copy(update={"per_request": 0.0, "per_kv_token": 0.0})}
)
"""Every step takes STEP."""


def played(simulation: Simulation, made: list[Request]) -> list[Request]:
    simulation._requests = iter(made)
    simulation.run()
    simulation.events.run(simulation.events.now + 1.0)  # the step after the last answer's end
    return made


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Every round looks whether the books are right; counts the ends of each request."""
    plan, leave = PlainGroup._plan, PlainGroup._leave
    ended: Counter[int] = Counter()

    def looked(group: PlainGroup) -> None:
        for rank in group.ranks:
            held = held_by(group, rank)
            assert group.kv[rank.place] == held >= 0
            assert group.coming[rank.place] >= 0 <= rank.coming
            assert bool(group.coming[rank.place]) == bool(rank.coming)
            assert len(rank.running) + rank.coming <= rank.slots
            assert group.requests[rank.place] == len(rank.running)
            if len(rank.running) + rank.coming > 1:
                assert held + group.coming[rank.place] <= rank.capacity
            assert 0 <= rank.shared <= held  # type: ignore[attr-defined]
            free = rank.capacity - held - group.coming[rank.place] + rank.shared  # type: ignore[attr-defined]
            assert rank.prompts.cache.tokens <= max(0, free)  # type: ignore[attr-defined]
        plan(group)

    def left(group: PlainGroup, rank: PlainRank, request: Request) -> None:
        done = request.generated + group.said_in(group.steps - request.joined)
        if done >= request.output:
            ended[request.number] += 1
            # One more where the loop hears of the end a step late.
            assert done - request.output < 1 + group.scheduling.stays * group.pace + group.pace - 1
        leave(group, rank, request)

    monkeypatch.setattr(PlainGroup, "_plan", looked)
    monkeypatch.setattr(PlainGroup, "_leave", left)
    return ended


def finished(simulation: Simulation, made: list[Request]) -> None:
    assert simulation.recorder.ended == len(made)
    for request in made:
        assert request.arrived < request.prefill_began < request.prefilled
        assert request.prefilled <= request.first_token <= request.ended
        assert request.bound == request.arrived
        group = simulation.groups[0]
        # A loop that tells of a token a round late may have run a pass in the round after the last;
        # and a step within a pass takes as long as that pass.
        steps = (request.output - 1) / group.pace - group.scheduling.notices
        least = 0 if group.mixed else steps * STEP  # type: ignore[attr-defined]
        assert request.ended - request.first_token >= least - 1e-9
    for group in simulation.groups:
        assert not group.requests.any() and not group.kv.any() and not group.coming.any()
    assert all(not rank.prompts.waiting and not rank.shared for rank in simulation.ranks)  # type: ignore[attr-defined]
    assert all(
        not s.inflight and s.ledger.there == NotBegun() for s in simulation.router.rank_states
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loop", ["overlap", "cpu", "plain"])
@pytest.mark.parametrize("attention", [True, False])
def test_every_request_ends_once_with_all_its_tokens(
    policy: Any, loop: str, attention: bool, checked: Counter[int]
) -> None:
    made = plain(
        policy, dp=3, dp_attention=attention, slots=6, kv_tokens=6000, chunk=512, loop=loop
    )
    simulation = Simulation(made, COST, iter(()))
    finished(simulation, played(simulation, list(requests(250, 40.0))))
    assert set(checked.values()) == {1} and len(checked) == 250


@pytest.mark.slow
@given(
    seed=st.integers(0, 1000),
    slots=st.integers(1, 8),
    capacity=st.integers(600, 6000),
    dp=st.integers(1, 3),
    attention=st.booleans(),
    mixed=st.booleans(),
    loop=st.sampled_from(["overlap", "cpu", "plain"]),
    chunk=st.sampled_from([64, 256, 4096]),
    limit=st.sampled_from([None, 300]),
    conservativeness=st.sampled_from([0.0, 1.0]),
    age=st.sampled_from([None, 0.2]),
    accepted=ACCEPTED,
)
@settings(max_examples=examples(60), deadline=None)
def test_nothing_is_lost_when_pools_are_small(
    seed: int,
    slots: int,
    capacity: int,
    dp: int,
    attention: bool,
    mixed: bool,
    loop: str,
    chunk: int,
    limit: Any,
    conservativeness: float,
    age: Any,
    accepted: float | None,
) -> None:
    made = plain(
        "power_of_two", dp=dp, dp_attention=attention, slots=slots, kv_tokens=capacity,
        mixed=mixed, loop=loop, chunk=chunk, limit=limit, conservativeness=conservativeness,
        waiting_age_s=age,
    )  # fmt: skip
    made = made.model_copy(update={"drafting": drafting(accepted)})
    with pytest.MonkeyPatch.context() as patched:
        ended = checked.__wrapped__(patched)  # type: ignore[attr-defined]
        simulation = Simulation(made, COST, iter(()), seed=seed)
        finished(simulation, played(simulation, list(requests(40, 50.0, seed))))
    assert set(ended.values()) == {1} and len(ended) == 40


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_seeds_give_equal_results(policy: Any) -> None:
    made = plain(policy, dp=3, dp_attention=True, slots=8, kv_tokens=5000)
    first, again = (Simulation(made, COST, requests(200), seed=3).run().result() for _ in range(2))
    assert first == again


@pytest.mark.parametrize("attention", [True, False])
def test_hops_are_the_steps_one_by_one(attention: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plain("shortest_queue", dp=2, dp_attention=attention, slots=8, kv_tokens=5000)
    ends = []
    for hop in (64, 1):
        monkeypatch.setattr(loops, "HOP", hop)
        kept = played(Simulation(made, COST, iter(())), list(requests(150, 30.0)))
        ends.append([(r.first_token, r.ended) for r in kept])
    for hopped, stepped in zip(*ends, strict=True):
        assert hopped == pytest.approx(stepped, rel=1e-9)


def delayed(other: Request, **worker: Any) -> float:
    """Seconds by which a running answer ends later because of another request."""
    ends = []
    for beside in ([], [other]):
        first = Request(0, 0.0, 50, 400)
        made = plain(loop="plain", **worker)
        played(Simulation(made, EVEN, iter(())), [first, *beside])
        ends.append(first.ended)
    return ends[1] - ends[0]


def test_a_pass_delays_the_steps_by_exactly_its_time() -> None:
    # Its one token is over with the prefill, so nothing else is changed by it.
    assert delayed(Request(1, 1.0, 700, 1)) == pytest.approx(COST.prefill_s([(700, 0)]))


def test_a_long_prompt_goes_through_before_the_next_step() -> None:
    passes = [COST.prefill_s([(new, 0)]) for new in (300, 300, 100)]
    assert delayed(Request(1, 1.0, 700, 1), chunk=300) == pytest.approx(sum(passes))


def test_with_mixed_chunks_steps_go_on_within_the_pass() -> None:
    # 299 tokens of the prompt and one of the answer in each pass.
    passes = [COST.prefill_s([(new + 1, 0)]) for new in (299, 299, 102)]
    mixed = delayed(Request(1, 1.0, 700, 1), chunk=300, mixed=True)
    # A pass that is shorter than a step takes as long as that.
    assert mixed == pytest.approx(sum(max(0.0, one - STEP) for one in passes))


@pytest.mark.parametrize("attention", [True, False])
def test_ranks_of_dp_attention_wait_for_a_pass_and_take_one_step_in_it(attention: bool) -> None:
    # Round robin sends the second request to the other rank.
    took = delayed(Request(1, 1.0, 2000, 1), dp=2, dp_attention=attention)
    expected = COST.prefill_s([(2000, 0)]) - STEP if attention else 0.0
    assert took == pytest.approx(expected, abs=1e-9)


def order(made: list[Request], **worker: Any) -> list[int]:
    """Numbers in the order in which their prefill was through."""
    played(Simulation(plain(**worker), COST, iter(())), made)
    return [r.number for r in sorted(made, key=lambda r: (r.prefilled, r.number))]


def test_the_shortest_uncached_prompt_goes_first() -> None:
    def made() -> list[Request]:
        sizes = [500, 400, 450, 20, 300]
        return [Request(n, n * 1e-6, prompt, 5) for n, prompt in enumerate(sizes)]

    assert order(made(), chunk=500, loop="plain") == [0, 1, 2, 3, 4]
    assert order(made(), chunk=500, loop="plain", waiting_age_s=9.0) == [0, 3, 4, 1, 2]
    assert order(made(), chunk=500, loop="plain", waiting_age_s=0.0) == [0, 1, 2, 3, 4]


def turns(users: int, each: int) -> list[Request]:
    """Conversations in which every prompt is the one before and a block of 100 tokens more; in
    every round of turns users come in another order, as in life."""
    made: list[Any] = []
    for turn in range(each):
        for place in range(users):
            user = (place * 3 + turn * 5) % users
            blocks = tuple(user * 1000 + n for n in range(turn + 1))
            number = len(made)
            made.append(
                Request(number, number * 0.3, 100 * (turn + 1) + 10, 4, f"u{user}", blocks, 100)
            )
    return made


def test_prefix_hits_follow_the_user_under_gimbal() -> None:
    hits = {}
    for policy in ("gimbal", "round_robin"):
        made = turns(7, 6)
        simulation = Simulation(plain(policy, replicas=4, kv_tokens=100_000), COST, iter(()))
        played(simulation, made)
        hits[policy] = sum(rank.prompts.hit_tokens for rank in simulation.ranks)  # type: ignore[attr-defined]
        assert hits[policy] == sum(r.cached for r in made)
    # All that a user said before is where it goes.
    assert hits["gimbal"] == 7 * sum(100 * turn for turn in range(6))
    assert hits["round_robin"] < 0.8 * hits["gimbal"]


@pytest.mark.parametrize(("between", "left"), [(600, 0), (450, 200), (250, 399)])
def test_cached_prefixes_give_way_to_running_requests(between: int, left: int) -> None:
    """Of a chain of four blocks the last ones go first; one token is always computed."""
    blocks = (1, 2, 3, 4)
    made = [
        Request(0, 0.0, 400, 4, blocks=blocks, block=100),
        Request(1, 1.0, between, 4),
        Request(2, 2.0, 400, 4, blocks=blocks, block=100),
    ]
    played(Simulation(plain(kv_tokens=700, slots=4), COST, iter(())), made)
    assert [r.cached for r in made] == [0, 0, left]


def test_a_prompt_is_in_the_load_once_while_it_is_computed() -> None:
    simulation = Simulation(
        plain(chunk=100, kv_tokens=9000), EVEN, [Request(n, 0.0, 250, 3) for n in range(2)]
    )
    seen = set()

    def look() -> None:
        load = simulation.router.rank_states[0].live()
        seen.add((load.used_tokens, load.waiting_tokens))
        simulation.events.after(0.002, look)

    simulation.events.at(0.0005, look)
    simulation.run()
    # On its way, the first in chunks, both (the second begins in what a chunk has left), their
    # tokens one by one.
    assert {(0, 500), (250, 250), (500, 0)} <= seen
    assert all(used + waiting <= 500 + 2 * 3 for used, waiting in seen)


def test_a_full_pool_retracts_and_the_answer_is_prefilled_again() -> None:
    made = plain(slots=16, kv_tokens=2500, conservativeness=0.0, limit=None, loop="plain")
    kept = list(requests(60, 50.0, prompt=200, output=200))
    simulation = Simulation(made, COST, iter(()))
    played(simulation, kept)
    assert simulation.recorder.retracted > 0 and simulation.recorder.ended == 60
    again = [r for r in kept if r.retracted]
    assert all(r.computed + r.cached >= r.prompt for r in again)
    assert any(r.computed > r.prompt for r in again)


@pytest.mark.parametrize(("limit", "together"), [(None, True), (700, False)])
def test_who_may_answer_at_length_needs_more_room_to_get_in(limit: Any, together: bool) -> None:
    pair = [Request(n, 0.0, 100, 150) for n in range(2)]
    played(Simulation(plain(kv_tokens=1000, limit=limit), COST, iter(())), pair)
    assert (pair[1].prefill_began < pair[0].ended) == together


def test_the_reserve_falls_with_steps_and_follows_a_retraction() -> None:
    ratio = NewTokenRatio()
    assert ratio.reserved([100, 5000]) == pytest.approx(0.7 * (100 + 4096))
    ratio.stepped(300)
    assert ratio.current == pytest.approx(0.7 * (1 - 0.86 / 2))
    ratio.stepped(10_000)
    assert ratio.current == pytest.approx(0.098)
    ratio.retracted([(50, 200), (10, 100)])
    assert ratio.current == pytest.approx((60 + 40) / 301)
    assert NewTokenRatio(3.0).current == 1.0


def test_a_plain_deployment_is_a_fleet() -> None:
    args = {"chunked-prefill-size": 8192, "enable-mixed-chunk": True}
    sizes = {"replicas": 2, "tp": 4, "dp": 4, "dp_attention": True, "kv_tokens": 9000}
    given = {"max_running": 64, "waiting": {"order": "sjf", "age_s": 2}, "args": args}
    deployment = Deployment.model_validate(
        {"name": "x", "mode": "plain", "worker": sizes | given, "router": {"decode_policy": "br0"}}
    )
    found = fleet_of(deployment)
    worker = found.worker
    assert worker is not None and found.decode_ranks == 8 and worker.dp_attention
    assert (worker.slots, worker.kv_tokens, worker.chunk, worker.mixed) == (16, 9000, 2048, True)
    assert worker.waiting_age_s == 2 and worker.loop == "cpu"
    assert found.router.decode_policy == "br0"
    ranks = Simulation(found, COST, iter(())).ranks
    assert all(rank.prompts.shortest is not None for rank in ranks)  # type: ignore[attr-defined]


def test_locality_has_no_signature_to_go_by() -> None:
    experts = SimulatedExperts.of_profile(profiles_dir() / "embedded")
    with pytest.raises(ValueError, match="eldr needs prefill workers"):
        Simulation(plain("eldr"), COST, iter(()), experts)


def test_plain_workers_have_one_policy() -> None:
    assert with_policies(plain(), "level").router.decode_policy == "level"
    for arm in ("gimbal+level", "late:level"):
        with pytest.raises(ValueError, match="plain workers have one policy"):
            with_policies(plain(), arm)
        assert with_policies(fleet(), arm).router.decode_policy == "level"


def test_the_command_plays_a_plain_deployment(tmp_path: Path) -> None:
    path, page = tmp_path / "plain.yaml", tmp_path / "page.html"
    worker = "{replicas: 2, dp: 2, kv_tokens: 16384, max_running: 16}"
    path.write_text(f"name: p\nmode: plain\nworker: {worker}\n")
    given = ["--rate", "2", "--seconds", "20", "--scale", "0.1", "--report", str(page)]
    compared = ["--compare", "gimbal,round_robin", "--seeds", "1"]
    done = CliRunner().invoke(app, ["simulate", str(path), *given, *compared])
    assert done.exit_code == 0, done.output
    assert "gimbal divided by" in done.output
    assert "4 ranks that prefill and decode on their own" in page.read_text()


def test_who_counts_tokens_hears_that_a_rank_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a pass its steps seem to be one more, until the boundary has looked."""
    made = plain("kv_shortest_queue", replicas=1, dp=2, dp_attention=True, chunk=64)
    simulation = Simulation(made, COST, requests(60, 40.0))
    (group,) = simulation.groups
    changed = []

    def seen() -> tuple[tuple[int, int], list[int]]:
        return group.progress(), [group.tokens_of(rank) for rank in group.ranks]

    def watched(boundary: Callable[[], None] = group._boundary) -> None:
        progress, tokens = seen()
        boundary()
        if seen()[1] != tokens:
            changed.append(seen()[0] != progress)

    monkeypatch.setattr(group, "_boundary", watched)
    simulation.run()
    assert changed and all(changed)
