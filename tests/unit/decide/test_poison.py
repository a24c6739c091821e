"""A request that kills its workers ends with an error, and nobody else does."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.present import present
from tests.standin.cluster import Cluster
from tests.unit.decide.hosting import DeciderHost
from tests.unit.router.cluster_calls import _whole, bodies, expected, idle, post, text_of
from toolkit.decide import messages as m
from toolkit.decide.poison import (
    LATELY_S,
    MOST_QUARANTINED,
    MOST_TOLD,
    QUARANTINE_S,
    Deaths,
    InQuarantine,
    Probation,
    Quarantine,
    Record,
    RetryBudget,
    Strike,
    ToldQuarantine,
)

PATH = "/v1/completions"


def seen(*what: str) -> Record:
    return Record([(each, f"w{n}") for n, each in enumerate(what)])  # type: ignore[misc]


@pytest.mark.parametrize(
    ("strikes", "lately", "guilty"),
    [
        ([], 0, False),
        (["crash"], 0, False),
        (["answer"], 0, False),
        (["crash", "crash"], 99, True),  # the workers said so themselves
        (["answer", "crash"], 0, True),
        (["gone", "gone"], 2, True),  # it saw all that went away
        (["gone", "gone"], 4, True),
        (["gone", "gone"], 5, False),  # a storm: a coincidence
        (["gone", "gone", "gone", "gone"], 99, True),
        (["stood", "stood"], 0, False),
        (["stood", "stood", "stood"], 99, True),  # no coincidence: it was alone with the third
        (["stood", "stood", "gone"], 99, False),
        (["transfer", "transfer"], 0, False),  # between prefill and decode it may be either
        (["transfer", "transfer", "answer"], 0, True),
    ],
)
def test_who_is_guilty(strikes: list[str], lately: int, guilty: bool) -> None:
    assert seen(*strikes).poisonous(lately) is guilty


def test_what_a_record_says_of_its_request() -> None:
    assert not seen("stood").suspect and seen("gone").suspect
    assert not seen("stood").lingering and seen("stood", "stood").suspect
    strikes = seen("answer", "crash", "gone", "stood")
    assert strikes.failed_by == {"w0", "w1"} and strikes.deaths == ["w1", "w2", "w3"]


def test_a_worker_has_one_suspect_at_a_time() -> None:
    probation, first, second = Probation(), object(), object()
    probation.take("a", first)
    probation.take("a", second)
    assert not probation.free("a") and probation.free("b")
    assert not probation.leave(second), "it had none"
    assert not probation.free("a")
    assert probation.leave(first) and probation.free("a")
    assert not probation.leave(first), "nobody is held any more"


def test_deaths_and_quarantines_are_forgotten() -> None:
    deaths, quarantine = Deaths(), Quarantine()
    deaths.note(0.0)
    assert (deaths.lately(LATELY_S - 1), deaths.lately(LATELY_S)) == (1, 0)
    quarantine.add(b"x", (), 0.0)
    assert quarantine.holds(b"x", QUARANTINE_S - 1) and not quarantine.holds(b"y", 0.0)
    assert not quarantine.holds(b"x", QUARANTINE_S) and not quarantine
    for number in range(MOST_QUARANTINED + 1):
        quarantine.add(b"%d" % number, (), 0.0)
    assert not quarantine.holds(b"0", 1.0) and quarantine.holds(b"1", 1.0)


def test_what_others_have_in_quarantine_takes_no_place_and_ends_as_it_does_there() -> None:
    quarantine = Quarantine()
    quarantine.add_told(b"theirs", InQuarantine(10.0, ()))
    assert quarantine.holds(b"theirs", 9.0) and not quarantine.holds(b"theirs", 10.0)
    quarantine.add(b"mine", (), 0.0)
    quarantine.add_told(b"mine", InQuarantine(1.0, ()))
    assert quarantine.holds(b"mine", QUARANTINE_S - 1), "an end that is seen here stays"
    for number in range(MOST_QUARANTINED):
        quarantine.add_told(b"%d" % number, InQuarantine(10.0, ()))
    for number in range(MOST_QUARANTINED // 2):
        quarantine.add(b"own %d" % number, (), 0.0)
    assert quarantine.holds(b"mine", 1.0)
    told = ToldQuarantine()
    for number in range(2 * MOST_TOLD):
        told.add(b"%d" % number, (), 1e9, 0.0)
    assert len(told._told) == MOST_TOLD
    last = told.of(b"%d" % (2 * MOST_TOLD - 1), 1.0)
    assert last is not None and last.held.until == QUARANTINE_S
    assert told.of(b"x", LATELY_S) is None and not told


KINDS: list[Strike] = ["crash", "gone", "stood", "answer", "transfer"]
TOLD = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(["decode-0", "decode-1", "?"])))


@given(TOLD, st.sets(st.sampled_from(["decode-0", "decode-1", "decode-2"])))
def test_of_what_others_tell_only_what_is_seen_here_counts(
    strikes: list[tuple[Strike, str]], dead: set[str]
) -> None:
    """A router whose network is broken sees all workers go: nobody believes it alone."""
    host = DeciderHost(decodes=3)
    for worker in dead:
        host.tell(m.WorkerDied(worker, crashed=True))
        host.tell(m.WorkerDown(worker))
    host.tell(m.QuarantineTold(b"digest", tuple(strikes), QUARANTINE_S))
    retries, now = host.decider.attempts.retries, host.now
    believed = [
        (what, worker)
        for what, worker in strikes
        if worker in dead or (worker != "?" and what in ("answer", "transfer"))
    ]
    guilty = Record(believed).poisonous(0)
    assert retries.quarantines
    assert retries.quarantined(b"digest", now) is guilty
    assert not retries.quarantined(b"another", now)
    host.pass_time(LATELY_S + 1)
    assert retries.quarantined(b"digest", host.now) is guilty, "it was settled while it was fresh"
    host.pass_time(QUARANTINE_S)
    assert not retries.quarantined(b"digest", host.now)


def test_a_death_that_is_seen_here_a_moment_later_counts_too() -> None:
    host = DeciderHost(decodes=3)
    strikes: tuple[tuple[Strike, str], ...] = (("crash", "decode-0"), ("crash", "decode-1"))
    host.tell(m.QuarantineTold(b"digest", strikes, QUARANTINE_S))
    retries = host.decider.attempts.retries
    assert not retries.quarantined(b"digest", host.now)
    for worker in ("decode-0", "decode-1"):
        host.pass_time(1.0)
        host.tell(m.WorkerDied(worker, crashed=True))
    assert retries.quarantined(b"digest", host.now)


@given(TOLD, st.floats(1.0, QUARANTINE_S - 1.0))
def test_what_was_before_a_router_came_is_taken_as_told_for_as_long_as_there(
    strikes: list[tuple[Strike, str]], left_s: float
) -> None:
    host = DeciderHost(decodes=3)
    told = m.QuarantineTold(b"digest", tuple(strikes), left_s)
    host.tell(told)
    retries = host.decider.attempts.retries
    guilty = Record([each for each in strikes if each[1] != "?"]).poisonous(0)
    assert [digest for digest, _ in retries.in_force(host.now)] == [b"digest"] * guilty
    host.pass_time(left_s - 0.5)  # longer than it would take to forget what is not seen
    assert retries.quarantined(b"digest", host.now) is guilty
    for digest, held in retries.in_force(host.now):  # and so it is handed on
        left = held.until - host.now
        assert (digest, held.strikes) == (b"digest", tuple(strikes)) and 0 < left <= 0.51
    host.pass_time(1.0)
    assert not retries.quarantined(b"digest", host.now) and not [*retries.in_force(host.now)]
    # What it could have seen, and has not, it does not believe.
    host.pass_time(QUARANTINE_S)
    host.tell(told)
    answered = [each for each in strikes if each[1] != "?" and each[0] in ("answer", "transfer")]
    assert retries.quarantined(b"digest", host.now) is Record(answered).poisonous(0)


def test_what_is_put_in_quarantine_here_is_told_with_what_it_saw() -> None:
    first, second = DeciderHost(decodes=3), DeciderHost(decodes=3)
    strikes: tuple[tuple[Strike, str], ...] = (("gone", "decode-0"), ("crash", "decode-1"))
    for number in range(3):
        first.decider.attempts.retries.quarantine.add(b"%d" % number, strikes, first.now)
        first.pass_time(1.0)
    first.decider.attempts.retries.quarantine.add(b"", strikes, first.now)
    found = [*first.decider.attempts.retries.in_force(first.now)]
    assert [digest for digest, _ in found] == [b"2", b"1", b"0"], "the newest first"
    for digest, held in found:
        second.tell(m.QuarantineTold(digest, held.strikes, held.until - first.now))
        assert second.decider.attempts.retries.quarantined(digest, second.now)


def test_reruns_are_bounded_and_come_back_with_success() -> None:
    budget = RetryBudget(3, per_success=0.5, per_second=0.1)
    assert [budget.take(0.0) for _ in range(4)] == [True, True, True, False]
    budget.succeeded()
    assert not budget.take(0.0)
    budget.succeeded()
    assert budget.take(0.0)
    assert not budget.take(9.0) and budget.take(10.1)
    assert budget.left(1e9) == 3


@pytest.mark.slow
@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_it_costs_two_workers_and_the_others_are_served(role: str, announced: bool) -> None:
    args = ["--token-ms", "5", "--prefill-ms", "60"]
    async with Cluster(prefills=4, decodes=4, worker_args=args) as cluster:

        def alive() -> int:
            processes = [present(each.process) for each in cluster.workers if each.role == role]
            return sum(process.poll() is None for process in processes)  # type: ignore[attr-defined]

        others = [post(cluster, PATH, bodies(20)[PATH]) for _ in range(12)]
        poison = bodies(20, poison=role, announced=announced)[PATH]
        (status, raw), *rest = await asyncio.gather(post(cluster, PATH, poison), *others)
        assert status == 422, raw
        assert b"not run again" in raw
        for status, raw in rest:
            assert (status, text_of(PATH, raw)) == (200, expected("hello", 20))
        # One that has announced its death takes a moment to die.
        state = await cluster.until(lambda state: idle(state) and alive() <= 2)
        assert alive() == 2
        assert sum(state["poison"].values()) == 2
        # Sent again, under another id, it costs nobody anything.
        status, raw = await post(cluster, PATH, poison | {"rid": "again"})
        assert status == 422
        await asyncio.sleep(0.2)
        assert alive() == 2


async def test_two_answers_of_500_are_the_request_s_fault() -> None:
    args = ["--record"]
    async with Cluster(decodes=4, worker_args=args) as cluster:
        body = bodies(4, stream=False, fail_status=500, fail_role="decode")[PATH]
        async with cluster.session.post(cluster.url + PATH, json=body) as response:
            assert response.status == 500
            assert response.headers["x-should-retry"] == "false"
            assert "as asked" in await response.text()
        asked = [len((await cluster.stats(f"decode-{n}"))["bodies"]) for n in range(4)]
        assert sum(asked) == 2
        # No worker is left alone for that.
        for _ in range(8):
            status, raw = await post(cluster, PATH, bodies(4, stream=False)[PATH])
            assert (status, _whole(json.loads(raw))) == (200, expected("hello", 4))
        asked = [len((await cluster.stats(f"decode-{n}"))["bodies"]) for n in range(4)]
        assert all(asked)
