"""How much an order may move, by what the orders before it took."""

from hypothesis import given
from hypothesis import strategies as st

from toolkit.relocate.pace import LEAST, MOST, ORDER_S, RATE, Pace


def test_the_first_order_is_the_least() -> None:
    pace = Pace()
    assert pace.slots(1.0) == LEAST
    cost = pace.cost(1e6, 1.0)
    assert (cost.bytes_per_s, cost.order_s, cost.slots) == (RATE, ORDER_S, LEAST)


def test_orders_grow_until_they_take_a_step() -> None:
    pace = Pace()
    pace.took(0.002, 2, 10**6)
    assert pace.slots(0.020) == 15
    bounded = Pace(0.008)
    bounded.took(0.002, 2, 10**6)
    assert bounded.slots(0.020) == 6
    assert pace.slots(0.0001) == LEAST  # two experts that change places cannot take less


def test_copies_on_a_gpu_tell_what_an_order_takes_and_others_how_fast_weights_go() -> None:
    pace = Pace()
    pace.took(0.001, 2, 0)
    pace.took(0.101, 2, 10**8)
    cost = pace.cost(5e7, 0.05)
    assert cost.order_s == 0.001 and abs(cost.bytes_per_s - 10**8 / 0.101) < 1
    assert cost.seconds(4, 4) > cost.seconds(0, 4) > 0


def test_a_clock_that_jumps_changes_nothing_for_long() -> None:
    steady, jumped = Pace(), Pace()
    for pace in (steady, jumped):
        for _ in range(3):
            pace.took(0.002, 2, 10**6)
            pace.took(0.002, 2, 0)
    for seconds in (3600.0, -5.0, float("inf"), float("nan")):
        jumped.took(seconds, 2, 10**6)
        jumped.took(seconds, 2, 0)
    assert jumped.cost(1e6, 0.05) == steady.cost(1e6, 0.05)


@given(st.lists(st.tuples(st.floats(1e-6, 10), st.integers(1, 300), st.integers(0, 10**12))))
def test_any_history_gives_a_size_in_bounds(orders: list[tuple[float, int, int]]) -> None:
    pace = Pace()
    for seconds, written, sent in orders:
        pace.took(seconds, written, sent)
    assert LEAST <= pace.slots(0.05) <= MOST
    assert pace.cost(1e6, 0.05).seconds(3, 10) >= 0
