"""Admission: bounds, order, batches beside single requests, and nothing lost on cancellation."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.kernels import examples
from toolkit.decide.slots import WAIT_LIMIT, Queued, Slots
from toolkit.router.admission import Admission, AdmissionEntry
from toolkit.router.errors import ApiError

MOST = 4


class _Part:
    def __init__(self, job: _Job, number: int) -> None:
        self.job, self.number = job, number
        self.running = False
        self.wanted = True

    def grant(self) -> bool:
        if not self.wanted:
            return False
        # In its job's order: nobody who was queued before it and still waits.
        assert not self.job.waits or self.job.waits[0] is self
        self.job.waits.popleft()
        self.running = True
        return True


class _Job:
    def __init__(self, batch: bool, best_effort: bool = False) -> None:
        self.queued = Queued(batch, best_effort)
        self.waits: deque[_Part] = deque()
        self.parts = 0


class SlotsMachine(RuleBasedStateMachine):
    """Slots never lose or double one, keep each job's order, and leave none idle without need."""

    parts = Bundle("parts")
    batches = Bundle("batches")

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(MOST)
        self.all: list[_Part] = []

    def _ask(self, job: _Job) -> _Part:
        part = _Part(job, job.parts)
        job.parts += 1
        job.waits.append(part)
        if self.slots.take(job.queued, part.grant):
            assert job.waits[0] is part
            job.waits.popleft()
            part.running = True
        self.all.append(part)
        return part

    @rule(target=parts, best_effort=st.booleans())
    def single(self, best_effort: bool) -> _Part:
        return self._ask(_Job(batch=False, best_effort=best_effort))

    @rule(target=batches, best_effort=st.booleans())
    def batch(self, best_effort: bool) -> _Job:
        return _Job(batch=True, best_effort=best_effort)

    @rule(target=parts, job=batches)
    def part(self, job: _Job) -> _Part:
        return self._ask(job)

    @rule(part=consumes(parts))
    def end(self, part: _Part) -> None:
        self.all.remove(part)
        part.wanted = False
        if part.running:
            self.slots.give(part.job.queued.batch)
        else:
            part.job.waits.remove(part)
            self.slots.forget(part.job.queued, part.grant)

    @rule(part=consumes(parts))
    def vanish(self, part: _Part) -> None:
        """It says no when its turn comes: its task was cancelled and has not run since."""
        self.end(part) if part.running else setattr(part, "wanted", False)
        if part in self.all:
            self.all.remove(part)
            part.job.waits.remove(part)

    @invariant()
    def counts_are_what_runs(self) -> None:
        running = [part for part in self.all if part.running]
        batched = [part for part in running if part.job.queued.batch]
        assert self.slots.running == len(running) <= MOST
        assert self.slots.batched == len(batched) <= self.slots.wide
        waiting = [part for part in self.all if not part.running]
        assert self.slots.waiting >= len(waiting)  # those that vanished are dropped in their turn

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        free = self.slots.running < MOST
        for part in self.all:
            if not part.running and free:
                assert part.job.queued.batch and self.slots.batched == self.slots.wide


SlotsMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestSlots = SlotsMachine.TestCase


def test_best_effort_parts_go_behind_others_and_not_for_ever() -> None:
    slots, went = Slots(1), []

    def ask(name: str, best_effort: bool) -> None:
        assert not slots.take(Queued(False, best_effort), lambda: went.append(name) or True)  # type: ignore[func-returns-value]

    assert slots.take(Queued(False), lambda: True)
    ask("effort 0", True)
    ask("effort 1", True)
    for number in range(WAIT_LIMIT + 1):
        ask(f"other {number}", False)
    for _ in range(WAIT_LIMIT + 3):
        slots.give(False)
    others = [f"other {number}" for number in range(WAIT_LIMIT + 1)]
    assert went == [*others[:WAIT_LIMIT], "effort 0", others[WAIT_LIMIT], "effort 1"]


def test_of_those_who_are_too_many_best_effort_ones_are_turned_away_first() -> None:
    admission = Admission(max_inflight=4, max_queue=4)
    efforts = [admission.enter(1, best_effort=True) for _ in range(6)]
    with pytest.raises(ApiError, match="Best-effort requests get three quarters") as refused:
        admission.enter(1, best_effort=True)
    assert refused.value.status == 429
    others = [admission.enter(1) for _ in range(2)]
    with pytest.raises(ApiError, match="full"):
        admission.enter(1)
    with efforts[0]:
        pass
    with admission.enter(1, best_effort=True), pytest.raises(ApiError):
        admission.enter(1, best_effort=True)
    for entry in (*efforts[1:], *others):
        with entry:
            pass
    assert not admission.busy and admission.best_effort == 0


class AdmissionMachine(RuleBasedStateMachine):
    """With tasks: cancellation at any moment loses no slot and no place."""

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.admission = Admission(3, 5)
        self.sub_requests: list[Queued] = []
        self.overtaken = 0

    def teardown(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self._turn()
        assert self.admission.running == self.admission.queued == self.admission.batched == 0
        assert not self.admission.busy
        self.loop.close()

    def _turn(self, turns: int = 4) -> None:
        async def spin() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.loop.run_until_complete(spin())

    @rule(target=live, parts=st.sampled_from([1, 1, 1, 1, 2, 3, 5]), turn=st.booleans())
    def arrive(self, parts: int, turn: bool) -> tuple[asyncio.Event, list[asyncio.Task[None]]]:
        go = asyncio.Event()

        async def part(entry: AdmissionEntry, before: list[Queued]) -> None:
            async with entry.slot():
                # Not who runs first: one that has been given its slot may wake up after another.
                self.overtaken += parts == 1 and any(each.grants for each in before)
                await go.wait()

        async def job() -> None:
            try:
                with self.admission.enter(parts) as entry:
                    before = list(self.sub_requests)
                    if parts == 1:
                        self.sub_requests.append(entry._job)
                    await asyncio.gather(*(part(entry, before) for _ in range(parts)))
            except ApiError as error:
                assert error.status == 429
                assert error.retry_after

        task = self.loop.create_task(job())
        if turn:
            self._turn()
        return go, [task]

    @rule(one=consumes(live), turn=st.booleans())
    def finish(self, one: tuple[asyncio.Event, list[asyncio.Task[None]]], turn: bool) -> None:
        one[0].set()
        if turn:
            self._turn()

    @rule(one=consumes(live), turn=st.booleans())
    def cancel(self, one: tuple[asyncio.Event, list[asyncio.Task[None]]], turn: bool) -> None:
        one[1][0].cancel()
        if turn:
            self._turn()

    @invariant()
    def bounds(self) -> None:
        admission = self.admission
        assert 0 <= admission.running <= 3
        assert 0 <= admission.places <= 8
        assert 0 <= admission.batched <= admission.widest == 6
        assert admission.running + admission.queued <= 8 - admission.places

    @invariant()
    def single_requests_are_first_come_first_served(self) -> None:
        assert not self.overtaken


AdmissionMachine.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
TestAdmission = AdmissionMachine.TestCase


async def _hold(entry: Any, go: asyncio.Event, order: list[str], name: str) -> None:
    async with entry.slot():
        order.append(name)
        await go.wait()


async def test_a_batch_as_wide_as_the_bound_leaves_a_slot_for_others() -> None:
    admission, go, order = Admission(48, 48), asyncio.Event(), []  # type: ignore[var-annotated]
    with admission.enter(48) as batch, admission.enter(1) as single:
        tasks = [asyncio.ensure_future(_hold(batch, go, order, "batch")) for _ in range(48)]
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(_hold(single, go, order, "single")))
        for _ in range(3):
            await asyncio.sleep(0)
        assert order[-1] == "single"
        assert admission.running == 37  # 36 of the batch
        go.set()
        await asyncio.gather(*tasks)
    assert not admission.busy


async def test_batches_that_come_together_cannot_overshoot() -> None:
    admission = Admission(4, 12)
    entered, refused = [], 0
    for _ in range(10):  # no await in between, as when all were parsed in one turn
        try:
            entered.append(admission.enter(4))
        except ApiError as error:
            assert (error.status, error.retry_after) == (429, 1)
            refused += 1
    assert (len(entered), refused) == (3, 7)
    with admission.enter(1):
        assert admission.places == 3
    for entry in entered:
        entry.__exit__(None, None, None)
    assert not admission.busy


async def test_batches_take_turns() -> None:
    admission, order = Admission(1, 40), []
    gate = asyncio.Event()

    async def part(entry: Any, name: str) -> None:
        async with entry.slot():
            await gate.wait()
            order.append(name)

    with admission.enter(1) as first, admission.enter(6) as a, admission.enter(3) as b:
        tasks = [asyncio.ensure_future(part(first, "first"))]
        for entry, name, count in ((a, "a", 6), (b, "b", 3)):
            tasks += [asyncio.ensure_future(part(entry, name)) for _ in range(count)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)
    assert "".join(order[1:]) == "abababaaa"


def test_draining_refuses_with_503() -> None:
    admission = Admission(1, 1)
    admission.draining.on = True
    with pytest.raises(ApiError) as refused:
        admission.enter(1)
    assert refused.value.status == 503
