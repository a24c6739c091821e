"""Who moves where, case by case."""

from dataclasses import replace

import pytest

from tests.unit.policies.stages.auctions import begun, ended, holding
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.moving import Instance, Knobs, Mover, PlannedMove, RunningRequest

TWO = Layout.of([(100, 2), (None, 2)])
ONE = Layout.of([(None, 4)])


def test_a_request_that_outgrew_its_stage_goes_to_the_lighter_of_the_next() -> None:
    auction = [holding(0, [101, 100]), holding(1, []), holding(2, [500], 1), holding(3, [400], 1)]
    assert Mover(TWO).decide(auction) == [PlannedMove((0, 0), 0, 3, "outgrown")]


def test_it_skips_a_stage_whose_range_it_has_left_too() -> None:
    three = Layout.of([(100, 1), (200, 1), (None, 1)])
    auction = [holding(0, [250]), holding(1, [], 1), holding(2, [], 2)]
    assert Mover(three).decide(auction) == [PlannedMove((0, 0), 0, 2, "outgrown")]


def test_where_its_stage_is_down_the_nearest_later_one_takes_it() -> None:
    three = Layout.of([(100, 1), (200, 1), (None, 1)])
    auction = [holding(0, [150]), holding(1, [], 1, held=True), holding(2, [], 2)]
    assert Mover(three).decide(auction) == [PlannedMove((0, 0), 0, 2, "outgrown")]
    long = [holding(0, [250]), holding(1, [], 1), holding(2, [], 2, held=True)]
    assert Mover(three).decide(long) == [PlannedMove((0, 0), 0, 1, "outgrown")]


def test_while_its_stage_is_full_it_stays() -> None:
    three = Layout.of([(100, 1), (200, 1), (None, 1)])
    mover = Mover(three)
    assert not mover.decide([holding(0, [150]), holding(1, [], 1, free=600), holding(2, [], 2)])
    assert mover.counters.passed == {"no_room": 1}


def test_a_request_in_a_later_stage_than_its_own_is_left_there() -> None:
    assert not Mover(TWO).decide([holding(0, []), holding(2, [10, 10], 1)])


def test_25_percent_above_the_mean_is_no_overload_and_more_is() -> None:
    knobs = Knobs(reserve=0)
    even = [holding(0, [100, 25]), holding(1, [75]), holding(2, [100]), holding(3, [100])]
    assert not Mover(ONE, knobs).decide(even)
    more = [holding(0, [100, 10, 16]), holding(1, [74]), holding(2, [100]), holding(3, [100])]
    assert Mover(ONE, knobs).decide(more) == [PlannedMove((0, 2), 0, 1, "overload")]


def test_an_overload_stays_inside_its_stage() -> None:
    auction = [holding(0, [50, 50, 50, 50]), holding(1, [50]), holding(2, [], 1), holding(3, [], 1)]
    assert {move.target for move in Mover(TWO).decide(auction)} == {1}


def test_no_move_of_which_the_target_would_be_as_heavy() -> None:
    assert not Mover(ONE).decide([holding(0, [100]), holding(1, [])])
    assert not Mover(ONE).decide([holding(0, [100, 100]), holding(1, [90])])


def test_of_the_lighter_half_the_one_that_starts_first_wins() -> None:
    source = holding(0, [200])
    auction = [
        source,
        holding(1, [900], 1),
        holding(2, [200], 1, coming_tokens=100, tokens_per_s=1000.0),
        holding(3, [350], 1, coming_tokens=10, tokens_per_s=1000.0),
        holding(4, [500], 1),
    ]
    # 4 and 1 could start at once, but are of the heavier half.
    assert Mover(TWO).decide(auction)[0].target == 3


def test_one_whose_speed_is_unknown_starts_last_where_something_is_on_its_way() -> None:
    auction = [
        holding(0, [200]),
        holding(1, [], 1, coming_tokens=10),
        holding(2, [300], 1, coming_tokens=9_000, tokens_per_s=10.0),
        holding(3, [9_999], 1),
        holding(4, [10_000], 1),
    ]
    assert Mover(TWO).decide(auction)[0].target == 2


def test_three_at_a_time_from_an_instance_and_to_one() -> None:
    many = [holding(0, [200] * 5), holding(1, []), holding(2, [], 1), holding(3, [], 1)]
    mover = Mover(TWO)
    first = mover.decide(many)
    assert len(first) == 3
    assert not mover.decide(begun(many, first))
    over = ended(many, first)
    assert len(mover.decide(over)) == 2
    one = [holding(0, [200] * 2), holding(1, [200] * 2), holding(2, [], 1)]
    assert len(Mover(TWO).decide(one)) == 3


def test_none_to_who_is_held_or_full_or_without_a_slot() -> None:
    for shut in ({"held": True}, {"free_tokens": 711}, {"slots_free": 0}, {"moving": 3}):
        auction = [holding(0, [200]), holding(2, [], 1, **shut)]
        assert not Mover(TWO).decide(auction), shut
    assert Mover(TWO).decide([holding(0, [200]), holding(2, [], 1, free=712)])


def test_none_of_who_cannot_move_or_moves() -> None:
    stuck = (RunningRequest("a", 200, movable=False), RunningRequest("b", 200, moving=True))
    source = Instance(0, 0, stuck, free_tokens=9999, moving=1)
    assert not Mover(TWO).decide([source, holding(2, [], 1)])


def test_the_heaviest_asks_first_but_who_was_passed_over_goes_before() -> None:
    knobs = Knobs(wait_limit=2)
    shut = holding(2, [], 1, free=0)
    room = replace(shut, free_tokens=812)  # for one of 300
    small, large = holding(0, [300]), holding(1, [300, 90])
    assert Mover(TWO, knobs).decide([small, large, room]) == [PlannedMove((1, 0), 1, 2, "outgrown")]
    mover = Mover(TWO, knobs)
    for _ in range(2):
        assert not mover.decide([small, holding(1, [90]), shut])
    assert mover.decide([small, large, room]) == [PlannedMove((0, 0), 0, 2, "outgrown")]


def test_who_stops_asking_is_no_longer_owed_a_turn() -> None:
    mover = Mover(TWO, Knobs(wait_limit=2))
    shut = holding(2, [], 1, free=0)
    for lengths in ([300], [300], [], [300]):
        mover.decide([holding(0, lengths), shut])
    room = replace(shut, free_tokens=812)
    auction = [holding(0, [300]), holding(1, [300, 90]), room]
    assert mover.decide(auction) == [PlannedMove((1, 0), 1, 2, "outgrown")]


def test_near_the_kv_limit_the_largest_goes_to_who_has_most_free() -> None:
    auction = [
        holding(0, [30, 70, 40], free=511),
        holding(1, [], free=2000),
        holding(2, [300], free=5000),
    ]
    assert Mover(ONE).decide(auction)[0] == PlannedMove((0, 1), 0, 2, "kv_limit")
    assert not Mover(ONE).decide([replace(auction[0], free_tokens=512), *auction[1:]])


def test_what_is_leaving_counts_as_free_soon() -> None:
    auction = [holding(0, [300, 300], free=400), holding(1, [300]), holding(2, [300])]
    mover = Mover(ONE)
    moves = mover.decide(auction)
    assert [move.why for move in moves] == ["kv_limit"]
    assert not mover.decide(begun(auction, moves))


def test_without_stages_the_lightest_levels_with_the_heaviest() -> None:
    auction = [holding(0, [100] * 6), holding(1, [100] * 2), holding(2, [100])]
    mover = Mover()
    moves = mover.decide(auction)
    assert {move.why for move in moves} == {"level"}
    loads = [each.load for each in ended(auction, moves)]
    assert loads == [300, 300, 300]
    assert mover.counters.moves == {"level": len(moves)}


def test_a_hole_is_filled_by_those_above_the_mean_though_none_is_far_above() -> None:
    auction = [
        holding(0, [30, 270]),
        holding(1, [20, 290]),
        holding(2, [100, 140]),
        holding(3, [300]),
    ]
    moves = Mover(None, Knobs(band=0.1)).decide(auction)
    assert [(move.request, move.target) for move in moves] == [((1, 0), 2)]
    assert not Mover(None, Knobs(band=0.2)).decide(auction)


def test_what_is_handed_on_is_at_most_half_of_what_lies_between() -> None:
    auction = [
        holding(0, [30, 60, 140]),
        holding(1, [100]),
    ]  # 60 is less than half of 130, 140 more
    moves = Mover(None, Knobs(band=0.05)).decide(auction)
    assert [move.request for move in moves] == [(0, 1)]
    assert [each.load for each in ended(auction, moves)] == [170, 160]


def test_the_smallest_goes_where_none_is_small_enough_and_both_get_lighter() -> None:
    auction = [holding(0, [60, 90]), holding(1, [70])]
    assert not Mover(None, Knobs(band=0.1)).decide(auction)  # 130 would be above the band
    moves = Mover(None, Knobs(band=0.2)).decide(auction)
    assert [move.request for move in moves] == [(0, 0)]
    assert [each.load for each in ended(auction, moves)] == [90, 130]


def test_moves_for_load_keep_their_rule_where_none_has_to_pay() -> None:
    knobs = Knobs(checked=frozenset())
    assert not Mover(ONE, knobs).decide([holding(0, [100, 100]), holding(1, [90])])
    assert not Mover(None, knobs).decide([holding(0, [100]), holding(1, [])])


def test_requests_with_too_little_left_do_not_move_for_their_load() -> None:
    short = tuple(RunningRequest(i, 100, left=i) for i in range(8))
    auction = [Instance(0, 0, short, free_tokens=9999), holding(1, [])]
    moves = Mover(None, Knobs(least=5)).decide(auction)
    assert {move.request for move in moves} <= {5, 6, 7} and moves


def test_a_move_that_costs_more_than_it_gains_is_not_made() -> None:
    def quality(batch: object) -> float:
        """One millisecond a KV token for each of the batch's requests."""
        lengths = [length for _, length in batch]  # type: ignore[attr-defined]
        return float(len(lengths) * sum(lengths) * 1e-3)

    auction = [holding(0, [100] * 4), holding(1, [])]
    # 4 x 0.4 s against 3 x 0.3 s and 1 x 0.1 s: 0.6 s a token.
    dear = Mover(None, Knobs(horizon=10), lambda length: 6.1, quality)
    assert not dear.decide(auction)
    assert set(dear.counters.passed) == {"no_gain"}
    assert Mover(None, Knobs(horizon=10), lambda length: 5.9, quality).decide(auction)


def test_a_request_outgrown_is_weighed_only_where_that_is_asked_for() -> None:
    def nothing(batch: object) -> float:
        return 0.0

    auction = [holding(0, [200]), holding(2, [], 1)]
    assert Mover(TWO, quality=nothing).decide(auction)
    assert not Mover(TWO, Knobs(checked=frozenset({"outgrown"})), quality=nothing).decide(auction)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [({"over": 0}, "over must be above 0"), ({"at_once": 0}, "at_once"), ({"reserve": -1}, "neg")],
)
def test_a_knob_that_cannot_be_says_so(knobs: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Knobs(**knobs)  # type: ignore[arg-type]


def test_a_stage_that_is_not_there_and_a_rank_twice_are_errors() -> None:
    with pytest.raises(ValueError, match="instance 0 is of stage 2; there are 2"):
        Mover(TWO).decide([holding(0, [], 2)])
    with pytest.raises(ValueError, match="a rank stands twice"):
        Mover(TWO).decide([holding(0, []), holding(0, [])])
