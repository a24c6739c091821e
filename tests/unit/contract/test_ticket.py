"""Tickets: what was signed is read, whatever else stands there is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.contract import ticket
from toolkit.contract.request_class import RequestClass
from toolkit.contract.ticket import (
    MAX_LATE,
    MAX_RESUMED_IDS,
    TICKET_KEY,
    Ticket,
    TicketError,
    read,
    sign,
)

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=40)
KEYS = st.text("aZ9 é☃", min_size=1)
RIDS = st.text()  # lone surrogates too
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def params(value: Any) -> dict[str, Any]:
    return {"mine": 1, TICKET_KEY: value}


@given(KEYS, RIDS, IDS, st.text(max_size=99), st.sampled_from(RequestClass), st.data())
def test_what_was_signed_is_read(
    key: str, rid: str, ids: list[int], capture: str, kind: RequestClass, data: st.DataObject
) -> None:
    late = data.draw(st.integers(0, min(len(ids), MAX_LATE)))
    signed = sign(key, rid, resume=ids, late=late, capture=capture, request_class=kind)
    sent = json.loads(json.dumps(signed))
    assert read(params(sent), rid, key) == Ticket(tuple(ids), late, capture, kind)


@pytest.mark.parametrize("late", [-1, 3, MAX_LATE + 1])
def test_no_more_tokens_are_late_than_are_resumed_and_have_a_place(late: int) -> None:
    ids = [1] * (MAX_LATE + 9) if late > MAX_LATE else [1, 2]
    with pytest.raises(TicketError, match="come with the KV"):
        sign("key", "rid", resume=ids, late=late)


@pytest.mark.parametrize("late", ["", "-1", "x", "1.0", "3", "97", "9" * 4000])
def test_a_number_of_late_tokens_that_is_none_is_refused_though_signed(late: str) -> None:
    forged = {"resume": "1 2", "late": late, "capture": "", "class": "standard"}
    forged["signature"] = ticket._signature("key", "rid", "1 2", late, "", "standard")
    with pytest.raises(TicketError, match=r"number of tokens|come with the KV"):
        read(params(forged), "rid", "key")


@given(st.sampled_from(RequestClass), st.sampled_from(RequestClass))
def test_a_client_cannot_change_its_class(mine: RequestClass, wanted: RequestClass) -> None:
    signed = sign("key", "rid", request_class=mine) | {"class": str(wanted)}
    if mine != wanted:
        with pytest.raises(TicketError, match="not signed for this request"):
            read(params(signed), "rid", "key")


def test_a_class_that_is_none_is_refused_though_signed() -> None:
    forged = {"resume": "", "late": "0", "capture": "", "class": "first"}
    forged["signature"] = ticket._signature("key", "rid", "", "0", "", "first")
    with pytest.raises(TicketError, match="no class of requests"):
        read(params(forged), "rid", "key")


@given(RIDS, RIDS, IDS)
def test_a_ticket_is_of_one_request(rid: str, other: str, ids: list[int]) -> None:
    signed = params(sign("key", rid, resume=ids))
    if rid != other:
        with pytest.raises(TicketError, match="not signed for this request"):
            read(signed, other, "key")


@given(IDS, st.text(max_size=9), IDS, st.text(max_size=9))
def test_what_was_changed_is_refused(
    ids: list[int], capture: str, others: list[int], captured: str
) -> None:
    signed = sign("key", "rid", resume=ids, capture=capture)
    changed = sign("key", "rid", resume=others, capture=captured)
    if (ids, capture) != (others, captured):
        with pytest.raises(TicketError):
            read(params(changed | {"signature": signed["signature"]}), "rid", "key")


@given(VALUES)
def test_a_client_s_own_value_is_refused(value: Any) -> None:
    with pytest.raises(TicketError):
        read(params(value), "rid", "key")


@given(st.sampled_from(["resume", "late", "capture", "class", "signature"]), VALUES)
def test_a_field_of_another_kind_is_refused(field: str, value: Any) -> None:
    signed = sign("key", "rid", resume=[1, 2], capture="name")
    if type(signed[field]) is type(value) and signed[field] == value:
        return
    with pytest.raises(TicketError):
        read(params(signed | {field: value}), "rid", "key")


def test_fields_are_exactly_those_of_a_ticket() -> None:
    signed = sign("key", "rid", resume=[1])
    for wrong in ({**signed, "more": 1}, {k: v for k, v in signed.items() if k != "capture"}):
        with pytest.raises(TicketError, match="own field"):
            read(params(wrong), "rid", "key")


@pytest.mark.parametrize("key", ["another", "", None])
def test_without_the_right_key_no_ticket_is_accepted(key: str | None) -> None:
    with pytest.raises(TicketError):
        read(params(sign("key", "rid", resume=[1])), "rid", key)


@pytest.mark.parametrize("custom", [None, {}, {"mine": 1}, "toolkit", ["toolkit"], 7])
@pytest.mark.parametrize("key", ["key", None])
def test_where_there_is_none_it_is_empty(custom: Any, key: str | None) -> None:
    assert read(custom, "rid", key) == Ticket()


def forged(ids: str) -> dict[str, str]:
    """Signed, whatever the ids are."""
    signature = ticket._signature("key", "rid", ids, "0", "", "standard")
    other = {"late": "0", "capture": "", "class": "standard"}
    return {"resume": ids, **other, "signature": signature}


@pytest.mark.parametrize(
    "ids", [" ", "1 ", " 1", "1  2", "-1", "1.0", "x", "+1", "1_0", "²", "2147483648", "9" * 4000]
)
def test_ids_that_are_none_are_refused_though_signed(ids: str) -> None:
    with pytest.raises(TicketError, match="token id"):
        read(params(forged(ids)), "rid", "key")


def test_too_many_ids_are_refused_on_both_sides() -> None:
    with pytest.raises(TicketError, match="at most"):
        sign("key", "rid", resume=[0] * (MAX_RESUMED_IDS + 1))
    ids = "0" + " 0" * MAX_RESUMED_IDS
    with pytest.raises(TicketError, match="at most"):
        read(params(forged(ids)), "rid", "key")


@pytest.mark.parametrize("wrong", [-1, 2**31, 1.0, "1", True, None])
def test_nothing_else_is_signed(wrong: Any) -> None:
    with pytest.raises(TicketError, match="no token id"):
        sign("key", "rid", resume=[wrong])
    with pytest.raises(TicketError, match="without the workers' key"):
        sign("", "rid")
