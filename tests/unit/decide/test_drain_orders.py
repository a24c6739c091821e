"""Routers that have heard of the same orders leave the same ranks alone, however they heard."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.decide.drain_orders import DrainOrder, DrainOrders

RANKS = {"a": [("a", 0), ("a", 1)], "a:0": [("a", 0)], "a:1": [("a", 1)], "b": [("b", 0)]}
KEYS = sorted({key for keys in RANKS.values() for key in keys})
ORDERS = st.lists(
    st.builds(
        DrainOrder, st.sampled_from(sorted(RANKS)), st.booleans(), st.integers(0, 5),
        st.sampled_from([0.0, 30.0]),
    ),
    max_size=8,
)  # fmt: skip


def heard(orders: Sequence[DrainOrder]) -> DrainOrders:
    known = DrainOrders()
    for order in orders:
        known.take(order, RANKS[order.worker])
    return known


def held(known: DrainOrders) -> list[bool]:
    return [known.holds(key) for key in KEYS]


@given(ORDERS, st.data())
def test_neither_order_nor_repetition_matters(
    orders: list[DrainOrder], data: st.DataObject
) -> None:
    others = data.draw(st.permutations(orders)) + data.draw(st.permutations(orders))
    one, other = heard(orders), heard(others)
    assert held(one) == held(other)
    assert one.all == other.all


@given(ORDERS, ORDERS)
def test_what_a_router_hands_on_is_all_that_another_one_needs(
    orders: list[DrainOrder], theirs: list[DrainOrder]
) -> None:
    known = heard(orders)
    assert held(heard(known.all)) == held(known)
    assert len(known.all) <= len(KEYS), "it does not grow with the orders"
    assert held(heard([*theirs, *known.all])) == held(heard([*orders, *theirs]))


@given(ORDERS)
def test_of_a_rank_the_newest_order_holds_and_an_undo_at_the_same_time(
    orders: list[DrainOrder],
) -> None:
    known = heard(orders)
    for key in KEYS:
        about = [order for order in orders if key in RANKS[order.worker]]
        newest = max((order.at for order in about), default=0)
        assert known.newest_at([key]) == newest
        last = [order.on for order in about if order.at == newest]
        assert known.holds(key) == (bool(last) and all(last))


def test_only_what_is_new_is_news() -> None:
    known = DrainOrders()
    order = DrainOrder("a", True, 5)
    assert known.take(order, RANKS["a"]) == RANKS["a"]
    assert known.take(order, RANKS["a"]) == []
    assert known.take(DrainOrder("a:1", False, 4), RANKS["a:1"]) == []
    assert known.take(DrainOrder("a:1", False, 6), RANKS["a:1"]) == RANKS["a:1"]
    assert held(known) == [True, False, False]


@pytest.mark.parametrize(
    "other", [{"worker": "b"}, {"on": False}, {"at": 6}, {"empty_s": 1.0}, {"proof": "p"}]
)
def test_a_proof_is_of_all_that_an_order_says(other: dict[str, object]) -> None:
    order = DrainOrder("a", True, 5, 2.0, "of an admin")
    same = msgspec.structs.replace(order, **other).signed == order.signed
    assert same == ("proof" in other)
    read = msgspec.json.decode(msgspec.json.encode(order), type=DrainOrder)
    assert read == order and read.signed == order.signed
