"""The simulator's small parts: clock, histogram, prefix cache, prefill worker, experts."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.simulate.fleets import COST
from toolkit.placement import Placement, Topology, linear
from toolkit.policies.sjf import ShortestFirst
from toolkit.simulate.events import Events
from toolkit.simulate.experts import Mixture, SimulatedExperts
from toolkit.simulate.fleet import Machine
from toolkit.simulate.histogram import Histogram
from toolkit.simulate.hops import seconds_of, steps_in
from toolkit.simulate.neighbours import Neighbours
from toolkit.simulate.prefill import PrefillWorker
from toolkit.simulate.prefix_cache import PrefixCache
from toolkit.simulate.recorder import POINTS, Series
from toolkit.simulate.request import Request


def test_what_is_planned_for_one_moment_happens_in_order() -> None:
    events, seen = Events(), []  # type: ignore[var-annotated]
    for name in "abc":
        events.at(2.0, seen.append, name)
    events.after(1.0, lambda: events.after(0.5, seen.append, "first"))  # type: ignore[arg-type]
    events.at(2.0, seen.append, "gone").cancel()
    events.at(9.0, seen.append, "late")
    events.run(5.0)
    assert seen == ["first", "a", "b", "c"] and events.now == 5.0


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=300), st.integers(1, 100))
def test_percentiles_are_near_the_right_ones(values: list[float], percent: int) -> None:
    histogram = Histogram()
    for value in [*values, math.nan]:
        histogram.add(value)
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    assert histogram.percentile(percent) == pytest.approx(exact, rel=0.003)
    assert histogram.mean == pytest.approx(sum(values) / len(values))
    assert histogram.curve()[-1][1] == pytest.approx(1.0)


def test_a_histogram_of_nothing_and_of_zeros() -> None:
    empty = Histogram()
    assert math.isnan(empty.mean) and math.isnan(empty.percentile(50))
    empty.add(0.0)
    assert empty.percentile(99) == 0.0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=20, max_size=60),
    st.integers(0, 12),
)
def test_no_block_is_left_without_those_before_it(
    prompts: list[tuple[int, int]], room: int
) -> None:
    cache = PrefixCache()
    for chain, length in prompts:
        blocks = [chain * 100 + n for n in range(length)]
        assert cache.match(blocks) <= cache.tokens
        cache.add(blocks, 10)
        cache.shrink(room * 10)
        assert cache.tokens <= room * 10
        for other in range(4):
            known = [other * 100 + n in cache._blocks for n in range(7)]
            assert known == sorted(known, reverse=True)


def prefill(**options: Any) -> tuple[Events, PrefillWorker, list[Request]]:
    events, done = Events(), []  # type: ignore[var-annotated]
    return events, PrefillWorker(events, COST, "p", done.append, **options), done


def asked(number: int, prompt: int, blocks: tuple[int, ...] = ()) -> Request:
    return Request(number, 0.0, prompt, 5, blocks=blocks, block=100 if blocks else 0)


def test_prompts_share_passes_and_long_ones_take_several() -> None:
    events, worker, done = prefill(chunk=1000)
    for number, prompt in enumerate((300, 1500, 100)):
        worker.take(asked(number, prompt))
    events.run()
    base, token = COST.prefill.base, COST.prefill.per_token
    assert [r.number for r in done] == [0, 1, 2]
    assert done[0].prefilled == pytest.approx(base + 1000 * token)
    assert done[1].prefilled == done[2].prefilled == pytest.approx(2 * base + 1900 * token)


def test_who_has_no_room_waits_until_kv_was_fetched() -> None:
    events, worker, done = prefill(kv_tokens=1000)
    for number in range(2):
        worker.take(asked(number, 600))
    events.run()
    assert [r.number for r in done] == [0]
    worker.fetched(done[0])
    events.run()
    assert [r.number for r in done] == [0, 1] and worker.held_tokens == 600


def test_a_known_beginning_is_not_computed_again() -> None:
    events, worker, done = prefill()
    for number in range(2):
        worker.take(asked(number, 350, (1, 2, 3)))
        events.run()
        worker.fetched(done[-1])
    assert [r.cached for r in done] == [0, 300] and worker.prompts.hit_tokens == 300
    worker.take(asked(2, 300, (1, 2, 3)))
    events.run()
    assert done[2].cached == 299  # one token must be computed


def test_the_shortest_goes_first() -> None:
    events, worker, done = prefill(chunk=500, shortest=ShortestFirst(1e9))
    for number, prompt in enumerate((400, 450, 20, 300)):
        worker.take(asked(number, prompt))
    events.run()
    assert [r.number for r in done] == [2, 3, 0, 1]


def test_a_loop_that_is_behind_tells_of_a_pass_after_the_next_one() -> None:
    events, worker, done = prefill(chunk=1000, behind=True)
    for number in range(3):
        worker.take(asked(number, 1000))
    events.run()
    step = COST.prefill.base + 1000 * COST.prefill.per_token
    assert [r.prefilled for r in done] == pytest.approx([2 * step, 3 * step, 3 * step])


def test_kv_is_sent_between_passes() -> None:
    events, worker, _ = prefill(chunk=1000)
    sent: list[float] = []
    worker.take(asked(0, 1000))
    events.after(0.001, worker.at_boundary, lambda: sent.append(events.now))
    events.run()
    worker.at_boundary(lambda: sent.append(-1.0))
    assert sent == pytest.approx([COST.prefill.base + 1000 * COST.prefill.per_token, -1.0])


def test_expected_distinct_experts_are_those_of_drawn_batches() -> None:
    source = np.random.default_rng(0)
    counts = source.binomial(50, source.random((6, 3, 8)) ** 3)
    experts = SimulatedExperts(counts, np.full(6, 50))
    mixture = Mixture(experts)
    batch = [0, 1, 1, 4]
    for row in (5, *batch):
        mixture.add(row)
    mixture.remove(5)
    drawn = source.random((20_000, len(batch), 24)) < (counts.reshape(6, -1) / 50)[batch]
    assert mixture.distinct() == pytest.approx(drawn.any(axis=1).sum(axis=1).mean(), rel=0.01)
    for row in batch:
        mixture.remove(row)
    assert mixture.distinct() == 0.0


def test_experts_of_the_busiest_gpu_are_those_of_drawn_batches() -> None:
    """Two layers of six experts on three GPUs, three experts twice, each token at one of both."""
    source = np.random.default_rng(1)
    counts = source.binomial(50, source.random((5, 2, 6)) ** 2)
    table = np.array([[0, 1, 2, 0, 3, 1, 4, 5, 2], [3, 4, 5, 0, 0, 1, 1, 2, 2]])
    placed = SimulatedExperts(counts, np.full(5, 50)).placed(Placement(table, 6, 3))
    mixture, batch = Mixture(placed), [0, 2, 2, 3]
    for row in batch:
        mixture.add(row)
    used = source.random((20_000, len(batch), 2, 6)) < (counts / 50)[batch]
    second = source.integers(0, 2, used.shape)
    loaded = np.zeros((2, 3))
    for layer, slots in enumerate(table.tolist()):
        for slot, expert in enumerate(slots):
            copies = slots.count(expert)
            mine = used[:, :, layer, expert]
            if copies > 1:
                mine = mine & (second[:, :, layer, expert] == slots[:slot].count(expert))
            loaded[layer, slot // 3] += mine.any(axis=1).mean()
    assert mixture.busiest() == pytest.approx(loaded.max(axis=1).sum(), rel=0.01)
    assert mixture.distinct() == pytest.approx(loaded.sum(), rel=0.01)


def test_on_one_gpu_the_busiest_has_all_experts() -> None:
    experts = SimulatedExperts(np.full((2, 3, 4), 5), np.full(2, 50))
    mixture = Mixture(experts.placed(linear(3, 4, Topology(1))))
    mixture.add(0)
    assert mixture.busiest() == pytest.approx(mixture.distinct()) == pytest.approx(3 * 4 * 0.1)


def test_a_placement_of_another_model_is_refused() -> None:
    experts = SimulatedExperts(np.full((2, 3, 4), 5), np.full(2, 50))
    with pytest.raises(ValueError, match="2 layers of 4 experts, the profile 3 of 4"):
        experts.placed(linear(2, 4, Topology(2)))
    with pytest.raises(ValueError, match="have a placement already"):
        experts.placed(linear(3, 4, Topology(2))).placed(linear(3, 4, Topology(2)))


@given(st.floats(1e-4, 1.0), st.floats(0, 1e-3), st.integers(1, 200))
def test_steps_in_a_time_are_those_that_take_it(first: float, slope: float, steps: int) -> None:
    seconds = seconds_of(steps, first, slope)
    assert steps_in(seconds, first, slope) == steps
    assert steps_in(seconds - first / 2, first, slope) == steps - 1
    assert seconds == pytest.approx(sum(first + j * slope for j in range(steps)))


def test_a_series_stays_small_and_spans_all() -> None:
    series = Series()
    for n in range(10 * POINTS):
        series.add(n * 0.1, [n])
    assert len(series.times) <= POINTS
    assert series.times[-1] > 0.95 * n * 0.1 and series.times[0] < 0.05 * n * 0.1


def test_costs_are_as_their_coefficients_say() -> None:
    requests, kv = np.array([2, 5]), np.array([1000, 100])
    d = COST.decode
    first = d.per_request * 2 + d.per_kv_token * 1000
    heaviest = max(first, d.per_request * 5 + d.per_kv_token * 100)
    assert COST.decode_s(requests, kv, 7.0) == pytest.approx(d.base + heaviest)
    alone = COST.decode_s(requests[:1], kv[:1], 0.0)
    assert alone == pytest.approx(d.base + first)


class Speed:
    """A party that only knows how fast it is."""

    def __init__(self) -> None:
        self.speed = 1.0

    def set_speed(self, speed: float) -> None:
        self.speed = speed


SPEEDS = st.floats(0.1, 1.0)


@given(
    st.tuples(SPEEDS, SPEEDS, SPEEDS, SPEEDS),
    st.lists(st.sampled_from(["prefill", "decode"]), min_size=1, max_size=6),
    st.data(),
)
def test_neighbours_add_up_what_each_takes_and_nobody_slows_himself(
    speeds: Any, kinds: list[str], data: st.DataObject
) -> None:
    fields = ("decode_beside_prefill", "prefill_beside_decode")
    fields += ("decode_beside_decode", "prefill_beside_prefill")  # type: ignore[assignment]
    machine = Machine(**dict(zip(fields, speeds, strict=True)))
    around = Neighbours(machine)
    parties = [Speed() for _ in kinds]
    for party, kind in zip(parties, kinds, strict=True):
        around.busy(party, kind)  # type: ignore[arg-type]
    gone = data.draw(st.sets(st.integers(0, len(kinds) - 1)))
    for place in gone:
        around.idle(parties[place])
    there = [place for place in range(len(kinds)) if place not in gone]
    for place in there:
        longer = sum(
            1 / getattr(machine, f"{kinds[place]}_beside_{kinds[other]}") - 1
            for other in there
            if other != place
        )
        assert parties[place].speed == pytest.approx(1 / (1 + longer))
