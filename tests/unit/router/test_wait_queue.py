"""Whoever waits keeps its place, however often it is woken for nothing."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from toolkit.router.wait_queue import WAIT_LIMIT, WaitQueue

STEPS = st.lists(st.sampled_from(["enter", "free", "flap", "cancel"]), max_size=60)


@given(STEPS)
def test_they_go_in_order_of_arrival(steps: list[str]) -> None:
    async def check() -> None:
        queue = WaitQueue()
        free = 0
        went: list[int] = []
        tasks: list[asyncio.Task[None]] = []

        async def one(number: int) -> None:
            nonlocal free
            with queue.enter() as place:
                while not (place.first and free):
                    await place.wait(60)
                free -= 1
                went.append(number)

        for number, step in enumerate(steps):
            if step == "enter":
                tasks.append(asyncio.ensure_future(one(number)))
            elif step == "free":
                free += 1
                queue.wake_one()
            elif step == "flap":  # the health of some worker has changed
                queue.wake_all()
            elif tasks:
                tasks[number % len(tasks)].cancel()
            for _ in range(3):
                await asyncio.sleep(0)
        free = len(tasks)
        queue.wake_one()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert went == sorted(went)
        assert len(went) + sum(task.cancelled() for task in tasks) == len(tasks)
        assert queue.waiting == 0

    asyncio.run(check())


@given(st.lists(st.sampled_from(["other", "effort", "free", "flap"]), max_size=60))
def test_best_effort_ones_go_behind_all_others(steps: list[str]) -> None:
    async def check() -> None:
        queue = WaitQueue()
        free = 0
        waits: dict[bool, list[int]] = {False: [], True: []}
        tasks: list[asyncio.Task[None]] = []

        async def one(number: int, best_effort: bool) -> None:
            nonlocal free
            waits[best_effort].append(number)
            with queue.enter(best_effort) as place:
                while not (place.first and free):
                    await place.wait(60)
                free -= 1
                assert not (best_effort and waits[False])
                assert waits[best_effort].pop(0) == number

        for number, step in enumerate(steps):
            if step == "free":
                free += 1
                queue.wake_one()
            elif step == "flap":
                queue.wake_all()
            else:
                tasks.append(asyncio.ensure_future(one(number, step == "effort")))
            for _ in range(3):
                await asyncio.sleep(0)
        free = len(tasks)
        queue.wake_one()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks)
        assert queue.waiting == 0

    asyncio.run(check())


async def test_a_best_effort_one_is_first_when_enough_others_went_before_it() -> None:
    queue = WaitQueue()
    with queue.enter(best_effort=True) as effort, queue.enter(best_effort=True) as second:
        for _ in range(WAIT_LIMIT):
            with queue.enter() as other:
                assert other.first and not effort.first
        with queue.enter() as other:
            assert effort.first and not other.first and not second.first
        assert effort.first


async def test_who_waits_in_vain_gets_its_turn_back_after_its_time() -> None:
    queue = WaitQueue()
    with queue.enter() as place:
        await place.wait(0.01)
        assert place.first and queue.waiting == 1
    assert queue.waiting == 0
