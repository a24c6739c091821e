"""What another policy would have decided, against what it does decide in the same traffic."""

import json
import random
from io import StringIO
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from toolkit.cli.main import app
from toolkit.decide.record import recorded
from toolkit.decide.what_if import CannotCompare, Side, what_if
from toolkit.policies import make_policy
from toolkit.policies.base import Load, Policy, RequestView, WorkerView
from toolkit.policies.rounds.assign import Assigner
from toolkit.policies.support.expert_locality import Centroids

RANKS = 4
POOL = 100_000
CHOOSERS = ["round_robin", "shortest_queue", "kv_shortest_queue", "unpooled@br0"]


class Home:
    """Ranks whose requests run for a number of arrivals that is theirs, wherever they run.

    So what a policy does in it and what a what-if of it says must be the same.
    """

    def __init__(self, policy: Policy, side: Side, seed: int) -> None:
        self.policy = policy
        self.following = policy.follow()
        self.side = side
        self.random = random.Random(seed)
        self.running: list[dict[str, RequestView]] = [{} for _ in range(RANKS)]
        self.generated: dict[str, int] = {}
        self.ends: dict[int, list[str]] = {}
        self.numbers = count()

    def views(self) -> list[WorkerView]:
        return [
            WorkerView(
                "decode",
                dp_rank=rank,
                inflight=len(here),
                inflight_tokens=sum(each.prompt_tokens for each in here.values()),
                load=Load(
                    running=len(here),
                    waiting=0,
                    waiting_tokens=0,
                    used_tokens=sum(
                        each.prompt_tokens + self.generated[rid] for rid, each in here.items()
                    ),
                    total_tokens=POOL,
                ),
                slots=64,
            )
            for rank, here in enumerate(self.running)
        ]

    def arrivals(self, requests: int, together: int) -> None:
        """`together` at a time; between two such times all that run make one token."""
        for now in range(0, requests, together):
            waiting = [self.request(float(now + place)) for place in range(together)]
            workers = self.views()
            if isinstance(self.policy, Assigner):
                chosen = {r: w for r, w, _ in self.policy.assign(workers, waiting)}
            else:
                chosen = {}
                for place, each in enumerate(waiting):
                    decision = self.policy.choose(workers, each)
                    assert decision is not None
                    chosen[place] = decision.index
            assert len(chosen) == len(waiting)
            for place, rank in chosen.items():
                self.side.note(workers, rank, waiting[place])
                self.send(waiting[place], rank, now)
            self.step(now)

    def request(self, now: float) -> RequestView:
        return RequestView(prompt_tokens=self.random.randrange(1, 4000), now=now)

    def send(self, request: RequestView, rank: int, now: int) -> None:
        rid = f"r{next(self.numbers)}"
        self.running[rank][rid] = request
        self.generated[rid] = 0
        self.following.sent(rid, ("decode", rank), ("decode", rank), request)
        self.ends.setdefault(now + self.random.randrange(1, 60), []).append(rid)

    def step(self, now: int) -> None:
        for here in self.running:
            for rid in here:
                self.generated[rid] += 1
                self.following.counted(rid, 1)
        for at in [at for at in self.ends if at <= now]:
            for rid in self.ends.pop(at):
                for here in self.running:
                    here.pop(rid, None)
                self.following.ended(rid, True)


def play(name: str, seed: int, requests: int = 150, together: int = 1) -> tuple[Side, list[str]]:
    """What a policy of that name does, and its record."""
    sink, side = StringIO(), Side(name)
    Home(recorded(make_policy(name, 0), sink), side, seed).arrivals(requests, together)
    return side, sink.getvalue().splitlines()


@pytest.mark.parametrize("other", CHOOSERS)
@pytest.mark.parametrize("name", CHOOSERS)
@settings(deadline=None, max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_it_is_what_the_other_policy_does_in_the_same_traffic(
    name: str, other: str, seed: int
) -> None:
    recorded_side, lines = play(name, seed)
    found = what_if(lines, other)
    assert found.recorded == recorded_side
    assert found.other == play(other, seed)[0]
    assert found.decisions == 150 and found.sent == 150
    assert found.same == 150 or name != other
    # Two policies may place as many on each rank without choosing alike.
    assert found.same < 150 or found.other.placed == found.recorded.placed


@pytest.mark.parametrize("other", ["br0", "pooled@shortest_queue"])
def test_rounds_are_played_as_rounds(other: str) -> None:
    """A round has one view of the ranks, so its own choices are noted one after the other."""
    _, lines = play("br0", 7, requests=240, together=4)
    found = what_if(lines, other)
    assert found.decisions == found.other.placed.total() == 240
    assert (found.same == 240) == (other == "br0")
    if other == "br0":
        assert found.other.above_mean == found.recorded.above_mean


def test_a_round_that_is_on_record_can_be_asked_of_a_policy_without_rounds() -> None:
    _, lines = play("br0", 7, requests=80, together=4)
    found = what_if(lines, "shortest_queue")
    assert found.other.placed.total() == 80 and 0 < found.same < 80


def test_a_policy_that_needs_what_the_record_lacks_is_refused_with_what_it_needs() -> None:
    _, lines = play("round_robin", 1, requests=4)
    with pytest.raises(CannotCompare, match="eldr decides by each request's signature"):
        what_if(lines, "eldr")
    with pytest.raises(CannotCompare, match="record of round_robin does not have"):
        what_if(lines, "gimbal")


def test_a_record_in_which_the_policy_changed_names_both_and_is_compared_as_a_whole() -> None:
    first, second = (play(name, 1, requests=20)[1] for name in ("round_robin", "shortest_queue"))
    found = what_if([*first, *second], "round_robin")
    assert found.recorded.name == "round_robin, shortest_queue" and found.decisions == 40


def test_likeness_is_the_cosine_with_what_runs_where_it_was_sent() -> None:
    """Two kinds of requests in turn: round robin over two ranks keeps them apart."""
    axes = np.eye(2, dtype=np.float32)
    sink = StringIO()
    policy = recorded(make_policy("eldr", 0), sink)
    following = policy.follow()
    for number in range(20):
        views = [WorkerView("d", dp_rank=r, load=Load(0, 0, 0, POOL, 0)) for r in range(2)]
        request = RequestView(prompt_tokens=10, now=float(number), signature=axes[number % 2])
        policy.choose(views, request)
        key = ("d", number % 2)  # its home sends it elsewhere than it said
        following.sent(f"r{number}", key, key, request)
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    place = 0
    for line in lines:
        if "choose" in line:
            line["index"], place = place, 1 - place
    found = what_if(map(json.dumps, lines), "eldr")
    assert found.recorded.likeness == [pytest.approx(1.0)] * 18
    assert found.recorded.placed == {("d", 0): 10, ("d", 1): 10}


@pytest.mark.parametrize("broken", ["{}", "[]", "{", '{"choose": {}}', '{"ended": 1}'])
def test_what_is_no_record_is_refused_with_its_line(broken: str) -> None:
    _, lines = play("round_robin", 1, requests=2)
    with pytest.raises(ValueError, match=f"line {len(lines) + 1} is no line of a record"):
        what_if([*lines, broken], "shortest_queue")
    with pytest.raises(ValueError, match="the record is empty"):
        what_if([], "shortest_queue")


def test_the_command_compares_and_writes_a_page_and_figures(tmp_path: Path) -> None:
    _, lines = play("round_robin", 3)
    record, page, figures = (tmp_path / name for name in ("a.jsonl", "page.html", "figures.json"))
    record.write_text("\n".join(lines) + "\n")
    given = ["replay", str(record), "--policy", "kv_shortest_queue"]
    done = CliRunner().invoke(app, [*given, "--report", str(page), "--output", str(figures)])
    assert done.exit_code == 0, done.output
    assert "150 decisions on record; kv_shortest_queue makes" in " ".join(done.output.split())
    told = json.loads(figures.read_text())
    assert [each["policy"] for each in told["policies"]] == ["round_robin", "kv_shortest_queue"]
    assert told["policies"][1]["kv_above_mean"] < told["policies"][0]["kv_above_mean"]
    assert told["policies"][0]["placed"] == {
        f"decode:{r}": [38, 38, 37, 37][r] for r in range(RANKS)
    }
    text = page.read_text()
    assert "fullest rank above the mean" in text and text.count("<svg") >= 3


def test_without_another_policy_the_record_itself_is_played_again(tmp_path: Path) -> None:
    record = tmp_path / "a.jsonl"
    lines = play("shortest_queue", 3, requests=20)[1]
    record.write_text("\n".join(lines) + "\n")
    done = CliRunner().invoke(app, ["replay", str(record)])
    assert done.exit_code == 0 and "0 differ" in done.output
    wrong = [line.replace('"index":0', '"index":1') for line in lines]
    record.write_text("\n".join(wrong) + "\n")
    assert CliRunner().invoke(app, ["replay", str(record)]).exit_code == 1


def two_ranks(*, healthy: bool = True) -> list[WorkerView]:
    """Ranks that have said nothing of their load."""
    return [WorkerView("d", dp_rank=rank, healthy=healthy) for rank in range(2)]


def test_tokens_of_a_step_and_a_rank_that_is_lost_count_where_the_record_has_them() -> None:
    sink = StringIO()
    policy = recorded(make_policy("round_robin", 0), sink)
    following = policy.follow()
    for number in range(4):
        request = RequestView(prompt_tokens=10, now=float(number))
        decision = policy.choose(two_ranks(), request)
        assert decision is not None
        key = ("d", decision.index)
        following.sent(f"r{number}", key, key, request)
    following.stepped(("d", 0), 5)
    following.lost(("d", 1))
    lines = [*sink.getvalue().splitlines(), '{"counted":["nobody",3]}']
    found = what_if(lines, "shortest_queue")
    assert (found.decisions, found.sent) == (4, 4)
    assert found.other.placed == found.recorded.placed == {("d", 0): 2, ("d", 1): 2}
    # A record goes on behind it: what was lost holds nothing any more.
    policy.choose(two_ranks(), RequestView(prompt_tokens=10, now=9.0))
    assert what_if(sink.getvalue().splitlines(), "shortest_queue").decisions == 5


def test_decisions_for_which_no_rank_would_do() -> None:
    sink = StringIO()
    policy = recorded(make_policy("shortest_queue", 0), sink)
    assert policy.choose(two_ranks(healthy=False), RequestView()) is None
    policy.choose(two_ranks(), RequestView())
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    found = what_if(map(json.dumps, lines), "round_robin")
    assert (found.recorded.refused, found.other.refused, found.same) == (1, 1, 2)
    lines[1]["index"], lines[2]["index"] = 0, None  # each refuses what the other places
    found = what_if(map(json.dumps, lines), "round_robin")
    assert (found.recorded.refused, found.other.refused, found.same) == (1, 1, 0)
    assert not found.recorded.placed and not found.other.placed


def test_a_round_may_leave_requests_waiting() -> None:
    sink = StringIO()
    policy = recorded(make_policy("br0", 0), sink)
    assert isinstance(policy, Assigner)
    policy.assign(two_ranks(healthy=False), [RequestView(prompt_tokens=5)])
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    lines[-1]["made"] = [[0, 1, 0]]  # the record says that it was placed
    found = what_if(map(json.dumps, lines), "br0")
    assert (found.decisions, found.held_back, found.other.refused) == (1, 1, 0)


def test_a_request_that_has_ended_is_like_nobody() -> None:
    sink = StringIO()
    policy = recorded(make_policy("eldr", 0), sink)
    assert policy.locality is not None
    axes = np.eye(2, dtype=np.float32)
    policy.locality.centroids = Centroids(axes, {("d", rank): rank for rank in range(2)})
    following = policy.follow()
    for number in range(3):
        request = RequestView(prompt_tokens=10, now=float(number), signature=axes[0])
        policy.choose(two_ranks(), request)
        following.sent(f"r{number}", ("d", 0), ("d", 0), request)
        following.ended(f"r{number}")
    lines = sink.getvalue().splitlines()
    assert what_if(lines, "eldr").recorded.likeness == []
    assert what_if(lines, "shortest_queue").decisions == 3, "it has no use for centroids"
    without = [line for line in lines if '"ended"' not in line]
    assert what_if(without, "eldr").recorded.likeness == [pytest.approx(1.0)] * 2


def test_a_record_names_its_policy_first() -> None:
    with pytest.raises(ValueError, match="line 1 is no line of a record: the policy is not named"):
        what_if(['{"counted":["r",1]}'], "round_robin")
