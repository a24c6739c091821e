"""Shortest prefill first: the order, the same one on every rank, and nobody left to starve."""

import random
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.sjf import ShortestFirst, WaitingRequest, theta_tokens


def ids(order: ShortestFirst, waiting: list[WaitingRequest], count: int) -> list[str]:
    return [waiting[index].id for index in order.order(waiting, count)]


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        # At count 1000 with theta_age 100: who began to wait at 900 or before is aged.
        ([("a", 30, 950), ("b", 10, 990), ("c", 20, 940)], "bca"),
        ([("a", 10, 950), ("b", 9000, 900)], "ba"),
        ([("a", 10, 950), ("b", 9000, 901)], "ab"),
        # Among the aged the oldest first, however short the others are.
        ([("a", 1, 890), ("b", 5000, 800), ("c", 3, 850)], "bca"),
        # Equal in length: who waits longer; equal in that too: the id.
        ([("b", 10, 950), ("a", 10, 960), ("d", 10, 970), ("c", 10, 970)], "bacd"),
        ([("b", 10, 900), ("a", 10, 900)], "ab"),
        # Priority classes first, then aging, then length.
        ([("a", 1, 800, 0), ("b", 9000, 990, 1), ("c", 10, 990, 1), ("d", 50, 900, 1)], "dcba"),
        ([("a", 1, 990, -5), ("b", 1, 990, 10**30), ("c", 1, 990, 0)], "bca"),
        # No work is a token's work; what began in the future has not waited.
        ([("a", 0, 950), ("b", 1, 940), ("c", -7, 945)], "bca"),
        ([("a", 20, 10**12), ("b", 10, 10**12)], "ba"),
        ([], ""),
    ],
)
def test_the_order(waiting: list[tuple[Any, ...]], expected: str) -> None:
    assert (
        "".join(ids(ShortestFirst(100), [WaitingRequest(*one) for one in waiting], 1000))
        == expected
    )


def test_who_has_waited_long_enough_outranks_its_class() -> None:
    waiting = [
        WaitingRequest("low", 500, 0, 0),
        WaitingRequest("high", 1, 990, 5),
        WaitingRequest("aged", 1, 880, 5),
    ]
    assert ids(ShortestFirst(100), waiting, 1000) == ["aged", "high", "low"]
    assert ids(ShortestFirst(100, theta_class=1000), waiting, 1000) == ["low", "aged", "high"]
    assert ids(ShortestFirst(inf, theta_class=50), waiting, 1000) == ["low", "aged", "high"]


def test_the_ends_of_theta_age() -> None:
    waiting = [WaitingRequest("a", 30, 1), WaitingRequest("b", 10, 3), WaitingRequest("c", 20, 2)]
    assert ids(ShortestFirst(0), waiting, 3) == ["a", "c", "b"]
    assert ids(ShortestFirst(inf), waiting, 10**12) == ["b", "c", "a"]


entries = st.builds(
    WaitingRequest,
    id=st.uuids().map(lambda one: one.hex),
    uncached=st.sampled_from([-1, 0, 1, 1, 30]),
    since=st.sampled_from([0, 70, 100, 120]),
    priority=st.sampled_from([0, 0, 1]),
)
queues = st.lists(entries, max_size=30, unique_by=lambda one: one.id)
ages = st.sampled_from([0.0, 10.0, 50.0, inf])


@given(queues, ages, ages, st.integers(0, 150), st.randoms(use_true_random=False))
def test_every_rank_finds_the_same_order(
    waiting: list[WaitingRequest], age: float, age_class: float, count: int, shuffle: random.Random
) -> None:
    one, two = ShortestFirst(age, age_class), ShortestFirst(age, age_class)
    other = shuffle.sample(waiting, len(waiting))
    assert sorted(one.order(waiting, count)) == list(range(len(waiting)))
    assert ids(one, waiting, count) == ids(two, other, count)
    # What was asked before leaves no trace.
    two.order(other, count + 1000)
    assert ids(one, waiting, count) == ids(two, other, count)


@given(queues, st.sampled_from([0.0, 10.0, 50.0]), st.integers(0, 150))
def test_whoever_comes_before_an_aged_one_is_older_or_of_a_higher_class(
    waiting: list[WaitingRequest], age: float, count: int
) -> None:
    """What the bound on waiting rests on."""
    order = [waiting[index] for index in ShortestFirst(age).order(waiting, count)]
    for place, one in enumerate(order):
        if count - one.since >= age:
            for before in order[:place]:
                assert before.priority > one.priority or (
                    before.priority == one.priority
                    and (before.since, before.id) < (one.since, one.id)
                )


@dataclass
class Engine:
    """Prefills from the head of the order, at most `budget` tokens a pass, one prompt in chunks."""

    order: ShortestFirst
    budget: int
    count: int = 0
    waiting: list[WaitingRequest] = field(default_factory=list)
    chunked: int = 0
    """Tokens left of the prompt that has begun."""
    began: dict[str, int] = field(default_factory=dict)
    """The counter at the pass in which each began."""

    def work(self) -> int:
        """Tokens of everything here."""
        return self.chunked + sum(max(1, one.uncached) for one in self.waiting)

    def step(self) -> None:
        start, room = self.count, self.budget
        done = min(room, self.chunked)
        self.chunked -= done
        room -= done
        self.waiting = [self.waiting[i] for i in self.order.order(self.waiting, start)]
        while self.waiting and room and not self.chunked:
            one = self.waiting.pop(0)
            self.began[one.id] = start
            tokens = max(1, one.uncached)
            self.chunked = max(0, tokens - room)
            room -= tokens - self.chunked
        self.count += self.budget - room


@given(
    st.integers(1, 20),
    st.integers(0, 80),
    st.lists(st.lists(st.integers(0, 40), max_size=4), min_size=1, max_size=40),
    st.booleans(),
)
def test_nobody_waits_longer_than_the_bound(
    budget: int, age: int, arrivals: list[list[int]], classes: bool
) -> None:
    """One class and theta_age, or three and theta_class."""
    order = ShortestFirst(age / 2, theta_class=age) if classes else ShortestFirst(age)
    engine = Engine(order, budget)
    longest = max([1, *(length for batch in arrivals for length in batch)])
    limits: dict[str, int] = {}
    for batch in arrivals:
        for length in batch:
            # B counts all that came at the same value of the counter, whatever its id.
            limits = {who: at + max(1, length) if who.startswith(f"{engine.count}.") else at
                      for who, at in limits.items()}  # fmt: skip
            name = f"{engine.count}.{len(limits)}"
            limits[name] = engine.count + age + budget + engine.work() + longest
            engine.waiting.append(WaitingRequest(name, length, engine.count, classes * length % 3))
        engine.step()
    while engine.waiting or engine.chunked:
        engine.step()
    assert set(engine.began) == set(limits)
    for name, start in engine.began.items():
        assert start < limits[name]


def flood(order: ShortestFirst, passes: int, priority: int = 0) -> int | None:
    """When a long prompt begins that comes first, while every pass brings a pass's work of short
    ones, of `priority`; None when it does not."""
    engine = Engine(order, budget=100)
    engine.waiting.append(WaitingRequest("long", 5000, 0))
    for number in range(passes):
        engine.waiting += [
            WaitingRequest(f"{number}.{i}", 10, engine.count, priority) for i in range(10)
        ]
        engine.step()
    return engine.began.get("long")


def test_a_flood_of_short_prompts_holds_a_long_one_up_for_theta_age() -> None:
    assert flood(ShortestFirst(inf), 400) is None, "without aging it would starve"
    assert flood(ShortestFirst(3000), 400) == 3000
    # Strict classes do starve; that is what they are for, unless theta_class says otherwise.
    assert flood(ShortestFirst(3000), 400, priority=1) is None
    assert flood(ShortestFirst(3000, theta_class=20_000), 400, priority=1) == 20_000


def test_prompts_without_work_cannot_hold_the_counter_still() -> None:
    engine = Engine(ShortestFirst(50), budget=100)
    engine.waiting.append(WaitingRequest("long", 90, 0))
    for number in range(20):
        engine.waiting += [WaitingRequest(f"{number}.{i}", 0, engine.count) for i in range(100)]
        engine.step()
    assert engine.began["long"] == 100


def test_the_shortest_first_wait_least() -> None:
    rng = random.Random(1)
    lengths = [rng.choice([20, 50, 4000]) for _ in range(200)]

    def mean(order: ShortestFirst) -> float:
        engine = Engine(order, budget=512)
        engine.waiting = [WaitingRequest(f"{i:03}", length, 0) for i, length in enumerate(lengths)]
        while engine.waiting or engine.chunked:
            engine.step()
        return sum(engine.began.values()) / len(lengths)

    assert mean(ShortestFirst(inf)) < 0.7 * mean(ShortestFirst(0))


def test_ten_thousand_wait() -> None:
    rng = random.Random(2)
    waiting = [
        WaitingRequest(f"{rng.getrandbits(128):032x}", rng.randint(1, 5000), rng.randint(0, 10**6))
        for _ in range(10_000)
    ]
    order = ShortestFirst(300_000).order(waiting, 10**6)
    aged = [i for i in order if waiting[i].since <= 700_000]
    assert order[: len(aged)] == aged
    assert [waiting[i].since for i in aged] == sorted(waiting[i].since for i in aged)
    young = [waiting[i].uncached for i in order[len(aged) :]]
    assert young == sorted(young)


@pytest.mark.parametrize("age", [-1.0, nan, -inf])
def test_ages_that_cannot_be(age: float) -> None:
    with pytest.raises(ValueError, match=r"theta_age = \S+ must be at least 0"):
        ShortestFirst(age)
    with pytest.raises(ValueError, match=r"theta_class = \S+ must be at least 0"):
        ShortestFirst(1, age)


def test_seconds_as_tokens() -> None:
    assert theta_tokens(5.0, 8000.0) == 40_000
    assert theta_tokens(0.0, 8000.0) == 0
    assert theta_tokens(0.1, 15.0) == 2
    for seconds, rate in ((-1.0, 1.0), (nan, 1.0), (inf, 1.0), (5.0, 0.0), (5.0, -1.0), (5.0, nan)):
        with pytest.raises(ValueError, match=r"above 0|at least 0"):
            theta_tokens(seconds, rate)
