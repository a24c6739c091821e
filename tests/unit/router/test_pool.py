"""The pool of finished prefills by itself: nothing lost, nothing bound twice, nothing held back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.present import present
from tests.unit.router.house import POOL, House, run, turns
from toolkit.contract.events import Steps
from toolkit.decide import pool as pool_module
from toolkit.decide.reservation import Reservation
from toolkit.policies.base import Policy, RequestView
from toolkit.policies.rounds.assign import Assigner


@pytest.mark.parametrize("policy", ["br0", "brh@survival", "pooled@shortest_queue"])
def test_a_free_slot_is_used_at_once_and_a_full_house_waits(policy: str) -> None:
    async def check() -> None:
        house = House(policy=policy)
        for _ in range(6):
            house.enter()
        await turns()
        house.take()
        assert [rank.inflight for rank in house.ranks] == [2, 2]
        assert len(house.pool) == 2
        first, second = house.waiting()
        house.end(0)  # no reading says so yet
        await turns()
        assert first.bound.done()
        assert not second.bound.done()
        house.leave(second)

    run(check)


def test_one_round_binds_what_came_in_one_turn_and_the_next_sees_it() -> None:
    async def check() -> None:
        house = House(ranks=2, slots=8)
        for _ in range(4):
            house.enter(200)
        await turns()
        assert house.policies.policies["decode"].counters.rounds == 1
        assert [rank.inflight_tokens for rank in house.ranks] == [400, 400]
        house.enter(50)
        house.publish(house.ranks[0])
        await turns()
        assert sum(rank.inflight_tokens for rank in house.ranks) == 850

    run(check)


def test_who_would_wait_for_kv_on_the_worker_waits_in_the_pool() -> None:
    """A decode worker keeps room for each request's next tokens, and takes no more beyond it."""

    async def check() -> None:
        house = House(ranks=1, slots=8, reserve=POOL // 4)
        for _ in range(5):
            house.enter(100)
        await turns()
        house.take()
        assert house.ranks[0].inflight == 3  # 3 * (2,500 + 100) and no fourth
        house.end(0)
        await turns()
        house.take()
        assert house.ranks[0].inflight == 3
        assert len(house.pool) == 1

    run(check)


def test_who_leaves_a_waiter_that_was_bound_gives_the_rank_back() -> None:
    async def check() -> None:
        house = House(ranks=1, slots=1)
        waiter = house.enter()
        await turns()
        assert house.ranks[0].inflight == 1
        house.leave(waiter)  # its client went away in that very turn
        assert (house.ranks[0].inflight, house.ranks[0].failed) == (0, 0)
        other = house.enter()
        await turns()
        assert other.bound.done()

    run(check)


def test_slots_that_a_worker_does_not_tell_are_without_limit_but_kv_is_not() -> None:
    async def check() -> None:
        house = House(ranks=1, slots=0)
        for _ in range(30):
            house.enter(POOL // 20)
        await turns()
        assert house.ranks[0].inflight == 20

    run(check)


def test_a_worker_that_failed_a_request_gets_it_only_when_no_other_is_up() -> None:
    async def check() -> None:
        house = House(ranks=2, slots=1)
        house.enter()
        await turns()
        house.take()
        full = house.running[0][1].rank.worker.name
        free = next(rank for rank in house.ranks if rank.worker.name != full)
        waiter = house.enter(avoid=(free.worker.name,))
        other = house.enter()
        await turns()
        assert not waiter.bound.done()
        assert other.bound.result().rank is free
        house.ranks[0 if free is house.ranks[1] else 1].worker.mark_down()
        house.take()
        house.end(-1)
        await turns()
        assert waiter.bound.result().rank is free

    run(check)


def test_without_a_decode_worker_they_wait_for_one_and_then_get_503() -> None:
    async def check() -> None:
        house = House(ranks=1, slots=1, park_timeout_s=0.4)
        waiter, patient = house.enter(), house.enter()
        house.ranks[0].worker.mark_down()
        await asyncio.sleep(0.1)
        assert not waiter.bound.done()
        house.leave(patient)
        await asyncio.wait([waiter.bound], timeout=5)
        assert waiter.refused == "nobody 2 "
        back = house.enter()
        await turns()
        house.ranks[0].worker.mark_up()
        await turns()
        assert back.bound.done()

    run(check)


def test_nobody_is_parked_for_ever_where_all_is_full() -> None:
    async def check() -> None:
        house = House(ranks=2, slots=1, park_timeout_s=0.4)
        for _ in range(3):
            house.enter()
        await turns()
        last = house.waiting()[0]
        reservation = await asyncio.wait_for(last.bound, 5)
        assert reservation.rank.inflight == 2
        assert house.pool.expired == 1

    run(check)


def test_a_reading_that_says_full_for_ever_is_not_believed_where_nothing_of_ours_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "BELIEVED_S", 0.2)

    async def check() -> None:
        for wrong in ({"running": 2}, {"used_tokens": POOL, "total_tokens": POOL}):
            house = House(ranks=1, slots=2)
            house.publish(house.ranks[0], **wrong)
            waiter = house.enter()
            await turns()
            assert not waiter.bound.done()
            await asyncio.wait_for(waiter.bound, 2)

    run(check)


def test_another_policy_takes_over_those_who_wait() -> None:
    async def check() -> None:
        for name in ("brh@survival", "br0"):
            house = House(ranks=1, slots=1)
            house.enter()
            waiter = house.enter()
            await turns()
            house.policies.use("decode", name)
            await turns()
            assert not waiter.bound.done()
            house.policies.use("decode", "shortest_queue")
            await turns()
            assert waiter.bound.result().rank.inflight == 2

    run(check)


def test_a_policy_that_fails_is_an_error_and_not_a_hang() -> None:
    async def check() -> None:
        house = House()

        class Failing(Assigner):
            name = "failing"

            def choose(self, workers: Any, request: Any) -> None:
                raise KeyError("secret words")

            assign = choose  # type: ignore[assignment]

        policy: Policy = Failing()
        house.policies.policies["decode"] = policy
        waiter = house.enter()
        await turns()
        assert waiter.refused == "policy 0 policy failing failed"

    run(check)


def test_tokens_reach_the_predictor_until_the_request_has_ended() -> None:
    async def check() -> None:
        house = House(ranks=1, policy="brh@survival")
        lengths = house.policies.policies["decode"].inflight
        house.enter(70)
        await turns()
        house.take()
        reservation = house.running[0][1]
        assert present(lengths).tokens(house.ranks[0].key) == 70
        count = present(house.channel.counter(reservation))
        count(1)
        count(1)
        house.publish(house.ranks[0])  # the decider hears of them before anything else
        assert present(lengths).tokens(house.ranks[0].key) == 72
        house.end(0)
        assert len(present(lengths)) == 0
        assert present(lengths).predictor.lengths.seen[0] == 1  # type: ignore[attr-defined]

    run(check)


def test_an_answer_that_does_not_stream_is_counted_by_the_rank_s_steps() -> None:
    async def check() -> None:
        house = House(ranks=1, policy="brh@survival")
        policy, rank = house.policies.policies["decode"], house.ranks[0]
        reservation = Reservation(
            rank, RequestView(prompt_tokens=50), 0.0, house.channel.decider.choosing.following
        )
        lengths = policy.inflight
        steps: dict[str, Any] = {"requests": 1, "kv_tokens": 1, "seconds": 1.0, "distinct": 0.0}
        rank.take_steps(Steps(steps=4, **steps))
        rank.take_steps(Steps(steps=3, **steps))
        assert present(lengths).tokens(rank.key) == 57
        reservation.end(True, 1.0, generated=6, finished=True)
        assert (len(present(lengths)), rank.unstreamed) == (0, {})
        ended = present(lengths).predictor.lengths  # type: ignore[attr-defined]
        assert ended._ended[0, 5] == 1  # of six tokens

    run(check)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "end", "read", "leave", "down", "up", "switch", "settle"]),
        st.integers(0, 7),
        st.integers(1, 3000),
    ),
    min_size=20,
    max_size=60,
)


HELD = ["br0", "brh@survival", "pooled@round_robin"]


@settings(max_examples=examples(150))
@given(ACTIONS, st.integers(1, 3), st.integers(0, 3), st.sampled_from(HELD))
def test_nothing_is_lost_bound_twice_or_held_while_a_slot_is_free(
    actions: list[tuple[str, int, int]], ranks: int, slots: int, policy: str
) -> None:
    async def check() -> None:
        house = House(ranks, slots, policy)
        left = []
        for what, which, tokens in actions:
            rank = house.ranks[which % ranks]
            if what == "enter":
                house.enter(tokens)
            elif what == "end" and house.running:
                house.end(which % len(house.running))
            elif what == "read":
                house.publish(rank)
            elif what == "leave" and house.waiters:
                waiter = house.waiters.pop(which % len(house.waiters))
                if not waiter.taken:
                    house.leave(waiter)
                    left.append(waiter)
            elif what == "down":
                rank.worker.mark_down()
            elif what == "up":
                rank.worker.mark_up()
                house.publish(rank)
            elif what == "switch":
                house.policies.use("decode", HELD[which % len(HELD)])
            if what != "settle":
                continue
            await turns()
            house.take()
            up = [rank for rank in house.ranks if rank.worker.healthy]
            for rank in up:
                assert not slots or rank.inflight <= slots
                if house.waiting() and (not slots or rank.inflight < slots):
                    room = POOL - rank.inflight_tokens
                    assert all(w.view.prompt_tokens > room for w in house.waiting())
        for rank in house.ranks:
            rank.worker.mark_up()
            house.publish(rank)
        for _ in range(200):
            await turns()
            house.take()
            if not house.waiting() and not house.running:
                break
            if house.running:
                house.end(0)
        assert house.waiting() == []
        assert [waiter.bound.cancelled() or not waiter.taken for waiter in left] == [True] * len(
            left
        )
        assert all(waiter.taken for waiter in house.waiters)
        for rank in house.ranks:
            assert (rank.inflight, rank.inflight_tokens) == (0, 0)
        assert len(house.pool) == 0

    run(check)


def test_how_level_the_ranks_are_is_summed_up_at_each_reading() -> None:
    async def check() -> None:
        house = House(ranks=3)
        for rank, used in zip(house.ranks, (300, 100, 200), strict=True):
            house.publish(rank, used_tokens=used)
        figures = house.policies.balance
        assert figures is not None
        figures.clear()
        house.publish(house.ranks[2], used_tokens=800)
        house.publish(house.ranks[0], used_tokens=-5)  # impossible: left out
        house.ranks[1].worker.mark_down()
        house.publish(house.ranks[2], used_tokens=800)  # alone: level
        assert figures.describe() == {
            "samples": 2,
            "kv_max": 800.0,
            "kv_min": 100.0,
            "kv_mean": 425.0,
            "imbalance": 700.0,
            "idle": 0.4688,
        }

    run(check)


@pytest.mark.parametrize(("ranks", "looks"), [(2, 64), (16, 64), (31, 64), (32, 32), (128, 8)])
def test_a_reading_costs_the_same_with_however_many_ranks(ranks: int, looks: int) -> None:
    """How level they are is then looked at less often, and nothing else changes."""

    async def check() -> None:
        house = House(ranks=ranks, policy="shortest_queue")
        for number, rank in enumerate(house.ranks):
            house.publish(rank, used_tokens=10 * number)
        balance = present(house.policies.balance)
        balance.clear()
        for turn in range(64):
            number = turn % ranks
            house.publish(house.ranks[number], used_tokens=10 * number)
        told = balance.describe()
        assert told["samples"] == looks
        assert (told["kv_max"], told["kv_min"]) == (10.0 * (ranks - 1), 0.0)

    run(check)
