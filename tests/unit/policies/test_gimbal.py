"""Gimbal's engine selection against Algorithm 1, line by line, and against loads that cannot be."""

from collections import Counter
from fractions import Fraction
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies import Load, Policy, RequestView, WorkerView
from toolkit.policies.gimbal import GimbalPolicy, Thresholds
from toolkit.policies.support.gimbal_reading import read

POOL = 10_000


def load(used: float, waiting: float = 0, sent: float = 0, total: float = POOL) -> Load:
    # Floats where integers belong, for readings that cannot be.
    values = {"used_tokens": used, "waiting_tokens": waiting, "sent_tokens": sent}
    return Load(running=0, waiting=0, total_tokens=total, **values)  # type: ignore[arg-type]


def fleet(*loads: Load | None, down: tuple[int, ...] = ()) -> list[WorkerView]:
    return [WorkerView(f"e{i}", load=one, healthy=i not in down) for i, one in enumerate(loads)]


def choose(policy: GimbalPolicy, workers: list[WorkerView], user: str | None = None,
           now: float = 0.0) -> tuple[str, int]:  # fmt: skip
    """(branch, index)"""
    decision = policy.choose(workers, RequestView(user=user, now=now))
    assert decision is not None
    return decision.reason.split(",")[0], decision.index


@pytest.mark.parametrize(
    ("loads", "home", "expected"),
    [
        # Line 2: no metric data, whoever asks. The rotation begins at engine 0.
        ((None, None), 1, ("no_readings", 0)),
        # Line 5, not overused: 15 to 17, whatever the loads.
        ((load(8999), load(0)), None, ("new_user", 0)),
        ((load(0), load(8999)), 1, ("affinity", 1)),
        ((load(1000), load(1000, waiting=50_000)), 1, ("affinity", 1)),
        # Line 5 at the threshold, line 6 at and just below its own.
        ((load(9000), load(8000)), 0, ("least_kv", 1)),
        ((load(9500), load(8500)), 0, ("least_kv", 1)),
        ((load(9000), load(8001)), 1, ("level", 0)),
        # Line 7 before line 9: memory decides although the tokens say the opposite.
        ((load(9500), load(8000, waiting=9000)), 0, ("least_kv", 1)),
        ((load(0), load(9000)), 1, ("least_kv", 0)),
        # Line 10: more than theta_load, not just as much; line 12.
        ((load(9000, waiting=3001), load(9000)), 0, ("least_load", 1)),
        ((load(9000, waiting=3000), load(9000)), 1, ("level", 0)),
        ((load(9000, waiting=8000), load(9500, waiting=100), load(9100, waiting=5000)), 0,
         ("least_load", 1)),
        # What was sent since the reading counts on both sides.
        ((load(9000, sent=1500), load(9000)), 0, ("least_kv", 1)),
        ((load(8000, sent=1000), load(8000)), 1, ("least_kv", 1)),
        ((load(9000, waiting=2500, sent=600), load(9000)), 0, ("least_load", 1)),
        # Engines of different size: the share of the pool, not the tokens.
        ((load(9000), load(16_000, total=20_000)), 0, ("least_kv", 1)),
    ],
)  # fmt: skip
def test_algorithm_1(
    loads: tuple[Load | None, ...], home: int | None, expected: tuple[str, int]
) -> None:
    policy = GimbalPolicy()
    workers = fleet(*loads)
    if home is not None:
        policy.users.store("ann", workers[home].key, 0.0)
    assert choose(policy, workers, "ann") == expected
    assert policy.counters.decisions == {expected[0]: 1}
    # Line 21, in every branch.
    assert policy.users.find("ann", 0.0) == workers[expected[1]].key


def test_requests_without_a_user_take_turns_and_are_not_remembered() -> None:
    policy = GimbalPolicy()
    workers = fleet(*[load(100)] * 3)
    chosen = [choose(policy, workers, user) for user in (None, "", None, None)]
    assert chosen == [("anonymous", i) for i in (0, 1, 2, 0)]
    assert len(policy.users) == 0


def test_nobody_is_left() -> None:
    policy = GimbalPolicy()
    assert policy.choose([], RequestView(user="ann")) is None
    assert policy.choose(fleet(load(0), down=(0,)), RequestView(user="ann")) is None
    assert isinstance(policy, Policy)


def test_affinity_expires_and_each_request_renews_it() -> None:
    policy = GimbalPolicy(expiry=300.0)
    workers = fleet(load(0), load(0))
    assert choose(policy, workers, None) == ("anonymous", 0)
    assert choose(policy, workers, "ann", 10.0) == ("new_user", 1)
    assert choose(policy, workers, "ann", 310.0) == ("affinity", 1)
    assert choose(policy, workers, "ann", 610.0) == ("affinity", 1)
    assert choose(policy, workers, "ann", 910.1) == ("new_user", 0)
    # Decided late, though it arrived before the last one.
    assert choose(policy, workers, "ann", 900.0) == ("affinity", 0)


def test_a_request_without_a_time_does_not_expire() -> None:
    policy = GimbalPolicy(expiry=1.0)
    workers = fleet(load(0), load(0))
    chosen = {policy.choose(workers, RequestView(user="ann")).index for _ in range(5)}  # type: ignore[union-attr]
    assert chosen == {0}


def algorithm_1(loads: list[Load], home: int | None, user: bool) -> tuple[str, set[int]]:
    """The paper's text once more, in exact fractions: the branch and the engines it allows."""
    usage = [Fraction(x.used_tokens + x.sent_tokens, x.total_tokens) for x in loads]
    running = [x.used_tokens + x.waiting_tokens + x.sent_tokens for x in loads]
    every = set(range(len(loads)))
    if max(usage) >= Fraction(9, 10):
        if max(usage) - min(usage) >= Fraction(1, 10):
            return "least_kv", {i for i in every if usage[i] == min(usage)}
        if max(running) - min(running) > 3000:
            return "least_load", {i for i in every if running[i] == min(running)}
        return "level", every
    if not user:
        return "anonymous", every
    return ("new_user", every) if home is None else ("affinity", {home})


sound = st.builds(
    load,
    st.sampled_from([0, 7000, 8000, 8500, 8999, 9000, 9500, POOL]) | st.integers(0, POOL),
    st.sampled_from([0, 2999, 3000, 3001]) | st.integers(0, 20_000),
    st.sampled_from([0, 0, 500]),
)
rounds = st.lists(
    st.tuples(
        st.lists(sound, min_size=3, max_size=3),
        st.sampled_from([None, "ann", "bob", "eve"]),
        st.integers(0, 200),
    ),
    max_size=12,
)


@given(rounds)
def test_as_the_paper_says_over_any_history(
    steps: list[tuple[list[Load], str | None, int]],
) -> None:
    policy, now = GimbalPolicy(expiry=300.0), 0
    last: dict[str, tuple[int, int]] = {}
    for loads, user, later in steps:
        now += later
        engine, at = last.get(user or "", (None, 0))
        branch, allowed = algorithm_1(loads, engine if now - at <= 300 else None, user is not None)
        chosen, index = choose(policy, fleet(*loads), user, float(now))
        assert chosen == branch
        assert index in allowed
        if user:
            last[user] = (index, now)
    assert sum(policy.counters.decisions.values()) == len(steps)


numbers = st.sampled_from([-1, 0, 100, 8000, 9500, 11_000, nan, inf, -inf, 10**400])
odd = st.none() | st.builds(load, numbers, numbers, numbers, st.sampled_from([0, POOL, nan, -5]))


@given(st.lists(st.tuples(st.lists(odd, min_size=1, max_size=5), st.sets(st.integers(0, 4)),
                          st.sampled_from([None, "ann", "bob"])), max_size=10))  # fmt: skip
def test_readings_that_cannot_be_never_attract(
    steps: list[tuple[list[Load | None], set[int], str | None]],
) -> None:
    policy, seen, wrong = GimbalPolicy(), 0, 0
    for loads, down, user in steps:
        workers = fleet(*loads, down=tuple(down))
        decision = policy.choose(workers, RequestView(user=user))
        healthy = [worker for worker in workers if worker.healthy]
        if not healthy:
            assert decision is None
            continue
        assert decision is not None
        assert workers[decision.index].healthy
        seen += 1
        wrong += sum(read(worker.load)[1] != "" for worker in healthy)
        branch = decision.reason.split(",")[0]
        believed = {w.key: r for w in healthy if (r := read(w.load)[0])}
        mine = believed.get(workers[decision.index].key)
        assert (branch == "no_readings") == (not believed)
        if branch in ("least_kv", "least_load", "affinity"):
            assert mine is not None
        if branch == "affinity":
            assert max(reading.usage for reading in believed.values()) < 0.9
    assert sum(policy.counters.decisions.values()) == seen
    assert sum(policy.counters.readings.values()) == wrong


@pytest.mark.parametrize(
    ("one", "wrong", "usage"),
    [
        (None, "missing", None),
        (load(-1), "negative", None),
        (load(0, waiting=-1), "negative", None),
        (load(0, sent=-1), "negative", None),
        (load(0, total=-POOL), "negative", None),
        (load(nan), "not a number", None),
        (load(0, waiting=inf), "not a number", None),
        (load(0, sent=10**400), "not a number", None),
        (load(-inf), "negative", None),
        (load(0, total=nan), "not a number", None),
        (load(0, total=0), "no capacity", None),
        (load(POOL + 1), "over capacity", 1.0),
        (load(2 * POOL, sent=500), "over capacity", 1.05),
        (load(POOL), "", 1.0),
        (load(2500), "", 0.25),
    ],
)
def test_what_a_load_can_be(one: Load | None, wrong: str, usage: float | None) -> None:
    reading, found = read(one)
    assert found == wrong
    assert (reading and reading.usage) == usage


def test_an_engine_without_a_load_is_not_an_empty_one() -> None:
    policy = GimbalPolicy()
    # Taken for empty, engine 0 would get every request of a full fleet.
    full = fleet(None, load(9500), load(9600), load(8000))
    assert {choose(policy, full, f"u{i}") for i in range(8)} == {("least_kv", 3)}
    # Taken for full, it would take affinity from everybody; it does from its own users only.
    calm = fleet(None, load(10), load(10), load(10))
    policy.users.store("ann", ("e1", 0), 0.0)
    policy.users.store("bob", ("e0", 0), 0.0)
    assert choose(policy, calm, "ann") == ("affinity", 1)
    assert choose(policy, calm, "bob")[0] == "home_lost"
    # And it is not starved.
    assert {choose(policy, calm)[1] for _ in range(4)} == {0, 1, 2, 3}
    assert policy.counters.readings == {"missing": 14}


def test_one_known_engine_of_a_silent_fleet_does_not_get_everything() -> None:
    policy = GimbalPolicy()
    workers = fleet(None, load(9500), None, None)
    assert Counter(choose(policy, workers)[1] for _ in range(8)) == dict.fromkeys(range(4), 2)


def test_a_burst_between_two_readings_does_not_land_on_one_engine() -> None:
    policy, sent = GimbalPolicy(), [0, 0, 0]
    for number in range(20):
        workers = fleet(*[load(9500 if i == 0 else 8000, sent=sent[i]) for i in range(3)])
        branch, index = choose(policy, workers, f"u{number}")
        assert branch == "least_kv"
        sent[index] += 50
    assert sent == [0, 500, 500]


@given(st.permutations([load(100), load(9500), load(8000)]), st.integers(0, 3))
def test_only_the_load_that_is_shown_counts_not_those_before(history: list[Load], cut: int) -> None:
    """Out of order or not: which reading is the newest is the reader's business."""
    policy = GimbalPolicy()
    for one in history[:cut]:
        choose(policy, fleet(one, load(5000)))
    assert choose(policy, fleet(load(9500), load(8000))) == ("least_kv", 1)


def test_users_of_a_rank_that_restarts() -> None:
    policy, two = GimbalPolicy(), [load(100), load(100)]
    policy.users.store("ann", ("e1", 0), 0.0)
    policy.users.store("bob", ("e1", 0), 0.0)
    assert choose(policy, fleet(*two, down=(1,)), "ann", 1.0) == ("home_lost", 0)
    # It is back and has published nothing yet: no reason to go there for its cache.
    assert choose(policy, fleet(load(100), None), "bob", 2.0)[0] == "home_lost"
    # Who moved stays where the prefix now is.
    assert choose(policy, fleet(*two), "ann", 3.0) == ("affinity", 0)
    # Who did not ask in the meantime still belongs there.
    policy.users.store("eve", ("e1", 0), 0.0)
    assert choose(policy, fleet(*two), "eve", 4.0) == ("affinity", 1)


def test_a_rank_that_is_added_gets_new_users_and_those_who_find_no_room() -> None:
    policy = GimbalPolicy()
    for user in ("ann", "bob"):
        choose(policy, fleet(load(100), load(100)), user)
    three = fleet(load(100), load(100), load(0))
    assert choose(policy, three, "eve") == ("new_user", 2)
    assert choose(policy, three, "ann") == ("affinity", 0)
    assert choose(policy, fleet(load(9500), load(9400), load(0)), "bob") == ("least_kv", 2)
    assert choose(policy, three, "bob") == ("affinity", 2)
    # Removed again: its users are taken in elsewhere.
    assert choose(policy, fleet(load(100), load(100)), "eve")[0] == "home_lost"


def test_the_map_of_users_is_bounded() -> None:
    policy = GimbalPolicy(capacity=50)
    workers = fleet(load(0), load(0), load(0))
    for number in range(2000):
        choose(policy, workers, f"u{number}", float(number))
        assert len(policy.users) <= 50
    assert choose(policy, workers, "u1999", 2000.0)[0] == "affinity"
    assert choose(policy, workers, "u0", 2000.0)[0] == "new_user"


def test_thresholds_of_its_own() -> None:
    policy = GimbalPolicy(thresholds=Thresholds(kv=0.5, diff=0.3, load=100))
    assert choose(policy, fleet(load(5000), load(2000))) == ("least_kv", 1)
    assert choose(policy, fleet(load(5000), load(4800))) == ("least_load", 1)
    assert choose(policy, fleet(load(5000), load(4950)))[0] == "level"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.8", Thresholds(0.8)),
        ("0.8:0.2", Thresholds(0.8, 0.2)),
        ("1:0:0", Thresholds(1.0, 0.0, 0.0)),
        ("0.9:0.1:inf", Thresholds(load=inf)),
    ],
)
def test_thresholds_from_text(text: str, expected: Thresholds) -> None:
    assert Thresholds.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "theta_kv =  must be a number"),
        ("x", "theta_kv = x must be a number"),
        ("0.9:", "theta_diff =  must be a number"),
        ("0", r"theta_kv = 0 must lie in \(0, 1\]"),
        ("1.01", "theta_kv = 1.01 must lie in"),
        ("90", "theta_kv = 90 must lie in"),
        ("nan", "theta_kv = nan must lie in"),
        ("0.9:-0.1", r"theta_diff = -0.1 must lie in \[0, 1\]"),
        ("0.9:10", "theta_diff = 10 must lie in"),
        ("0.9:0.1:-1", "theta_load = -1 must be at least 0 tokens"),
        ("0.9:0.1:nan", "theta_load = nan must be at least 0 tokens"),
        ("0.9:0.1:3000:5", "must be KV"),
    ],
)
def test_thresholds_that_cannot_be(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        Thresholds.parse(text)


@given(st.lists(st.tuples(st.lists(sound, min_size=1, max_size=4),
                          st.sampled_from([None, "ann", "bob"])), max_size=8))  # fmt: skip
def test_two_objects_with_one_history_decide_alike(
    steps: list[tuple[list[Load], str | None]],
) -> None:
    one, two = GimbalPolicy(7), GimbalPolicy(7)
    for loads, user in steps:
        assert choose(one, fleet(*loads), user) == choose(two, fleet(*loads), user)
