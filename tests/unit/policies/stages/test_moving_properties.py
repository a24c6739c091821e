"""What holds of every look, whatever the floor."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.policies.stages.auctions import LAYOUTS, auctions, begun, ended
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.moving import Instance, Knobs, Mover, PlannedMove

KNOBS = st.builds(
    Knobs,
    over=st.sampled_from([0.05, 0.25, 1.0]),
    at_once=st.integers(1, 4),
    reserve=st.sampled_from([0, 100, 512]),
    wait_limit=st.integers(1, 3),
)
CASES = LAYOUTS.flatmap(lambda layout: st.tuples(st.just(layout), auctions(layout), KNOBS))
Case = tuple[Layout | None, list[Instance], Knobs]


@settings(max_examples=examples(150), deadline=None)
@given(CASES)
def test_every_move_may_be_made(case: Case) -> None:
    layout, auction, knobs = case
    moves = Mover(layout, knobs).decide(auction)
    assert len({move.request for move in moves}) == len(moves)
    by_rank = {each.rank: each for each in auction}
    per: Counter[object] = Counter()
    slots: Counter[object] = Counter()
    free = {each.rank: each.free_tokens for each in auction}
    for move in moves:
        source, target = by_rank[move.source], by_rank[move.target]
        (request,) = [each for each in source.running if each.request == move.request]
        assert source is not target
        assert request.movable and not request.moving
        assert not target.held
        assert request.length + knobs.reserve <= free[move.target]
        free[move.target] -= request.length
        slots[move.target] += 1
        per.update((move.source, move.target))
        if layout is not None and move.why == "outgrown":
            assert target.stage > source.stage
        if move.why == "overload":
            assert target.stage == source.stage
    for each in auction:
        assert slots[each.rank] <= each.slots_free
        assert not per[each.rank] or per[each.rank] + each.moving <= knobs.at_once


@settings(max_examples=examples(150), deadline=None)
@given(CASES)
def test_nobody_is_lost_or_doubled_and_the_tokens_stay_as_many(case: Case) -> None:
    layout, auction, knobs = case
    moves = Mover(layout, knobs).decide(auction)
    after = ended(auction, moves)
    who = Counter(each.request for i in auction for each in i.running)
    assert Counter(each.request for i in after for each in i.running) == who
    assert sum(each.load for each in after) == sum(each.load for each in auction)
    assert sum(each.load for each in begun(auction, moves)) == sum(each.load for each in auction)


@settings(max_examples=examples(150), deadline=None)
@given(CASES, st.booleans())
def test_the_next_look_moves_nobody_back(case: Case, over: bool) -> None:
    layout, auction, knobs = case
    mover = Mover(layout, knobs)
    first = mover.decide(auction)
    back = {(move.request, move.target, move.source) for move in first}
    later = (ended if over else begun)(auction, first)
    assert not back & {(move.request, move.source, move.target) for move in mover.decide(later)}


def _heaviest(auction: list[Instance]) -> int:
    return max(each.load for each in auction)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 300), max_size=8), min_size=2, max_size=5),
    st.booleans(),
)
def test_moves_for_load_end_and_never_raise_the_heaviest(
    lengths: list[list[int]], staged: bool
) -> None:
    from tests.unit.policies.stages.auctions import holding

    auction = [holding(rank, each) for rank, each in enumerate(lengths)]
    mover = Mover(Layout.of([(None, len(auction))]) if staged else None)
    for _ in range(60):
        moves: list[PlannedMove] = mover.decide(auction)
        after = ended(auction, moves)
        assert _heaviest(after) <= _heaviest(auction)
        auction = after
    assert not mover.decide(auction)


@settings(max_examples=examples(50), deadline=None)
@given(CASES)
def test_the_same_looks_have_the_same_answers(case: Case) -> None:
    layout, auction, knobs = case
    one, two = Mover(layout, knobs), Mover(layout, knobs)
    for _ in range(3):
        moves = one.decide(auction)
        assert moves == two.decide(auction)
        auction = ended(auction, moves)
