"""A target puts the tokens that it heard of in place of their placeholders and gives the rest of
the places back, or ends the request."""

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.move.incoming import _settle, learn
from toolkit.contract.move_orders import Ids

VOCABULARY = 100
IDS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)


class Grammar:
    """Accepts what it is told to, in order."""

    def __init__(self, allowed: list[int]) -> None:
        self.allowed, self.current_token = list(allowed), 1

    def accept_token(self, token: int) -> None:
        if not self.allowed or self.allowed.pop(0) != token:
            raise RuntimeError("no")


class Slots:
    """`req_to_token` of one request: place n is slot 1000 + n."""

    def __getitem__(self, at: Any) -> list[int]:
        row, places = at
        assert row == 5
        return list(range(1000 + places.start, 1000 + places.stop))


class Allocator:
    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.freed: list[int] = []

    def free(self, slots: list[int]) -> None:
        self.freed += slots


def scheduler(overlap: bool = True, page: int = 1, waiting: Any = None) -> Any:
    queue = lambda reqs: SimpleNamespace(queue=[SimpleNamespace(req=req) for req in reqs])  # noqa: E731
    return SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=VOCABULARY),
        enable_overlap=overlap,
        disaggregation_mode=SimpleNamespace(value="decode"),
        token_to_kv_pool_allocator=Allocator(page),
        req_to_token_pool=SimpleNamespace(req_to_token=Slots()),
        disagg_decode_prealloc_queue=queue([]),  # type: ignore[no-untyped-call]
        disagg_decode_transfer_queue=queue([waiting] if waiting else []),  # type: ignore[no-untyped-call]
    )


def request(known: list[int], late: int, arrived: int, grammar: Any = None) -> Any:
    ended: list[str] = []
    places = 3 + len(known) + late
    return SimpleNamespace(
        rid="r",
        origin_input_ids=[1, 2, 3],
        output_ids=array("q", [*known, *[0] * late, arrived]),
        toolkit_late=late,
        grammar=grammar,
        kv=SimpleNamespace(req_pool_idx=5, kv_allocated_len=places, kv_committed_len=places),
        set_finish_with_abort=ended.append,
        ended=ended,
    )


@given(
    known=IDS,
    late=IDS,
    empty=st.integers(0, 40),
    row=st.integers(1, 20),
    more=st.lists(st.integers(0, 99), max_size=4),
    overlap=st.booleans(),
    page=st.sampled_from([1, 4, 16]),
)
def test_tokens_stand_where_they_were_generated_and_empty_places_are_free(
    known: list[int], late: list[int], empty: int, row: int, more: list[int], overlap: bool,
    page: int,
) -> None:  # fmt: skip
    """The last `row` tokens came with the KV; the router has told the others, and maybe some that
    its source generated after the stop."""
    req = request(known, len(late) + empty, 77, Grammar(late))
    own = scheduler(overlap, page, req)
    outputs = len(known) + len(late)
    del req.output_ids[-1]
    learn(own, Ids("r", len(known), late[: max(0, len(late) - row)] + late[-row:]))
    req.output_ids.append(77)
    assert _settle(own, req, outputs, late[-row:]) == ""
    assert list(req.output_ids) == [*known, *late, 77]
    before = [*known, *late]
    counted = [before[0], *before[:-1]] if overlap else before
    assert req.toolkit_penalty_history == counted
    assert req.toolkit_late == 0
    assert req.grammar.current_token is None and not req.grammar.allowed
    first = -(-(3 + outputs) // page) * page
    freed = own.token_to_kv_pool_allocator.freed
    assert freed == [1000 + place for place in range(first, 3 + outputs + empty)]
    assert req.kv.kv_allocated_len == req.kv.kv_committed_len == 3 + outputs


@pytest.mark.parametrize(
    ("outputs", "ids", "why"),
    [
        (0, [], "came with -1 tokens, and there are places for 0 to 2"),
        (4, [5, 6, 7], "came with 3 tokens"),
        (3, [6], "before the router had told all"),
        (3, [4, 5, 6], "before the router had told all"),
        (3, [5, VOCABULARY], "outside the vocabulary"),
        (3, [-1, 5], "outside the vocabulary"),
    ],
)
def test_what_cannot_be_is_said(outputs: int, ids: list[int], why: str) -> None:
    own, req = scheduler(), request([3], 2, 4)
    assert why in _settle(own, req, outputs, ids)
    assert req.kv.kv_allocated_len == 6 and not own.token_to_kv_pool_allocator.freed


def test_what_the_router_told_must_be_what_came() -> None:
    req = request([3], 2, 4)
    req.toolkit_heard = [5, 7]
    assert "before the router" in _settle(scheduler(), req, 3, [6])  # 5, then
    req.toolkit_heard = [5, 7]
    assert "before the router" in _settle(scheduler(), req, 3, [5, 6])


def test_what_is_told_of_others_is_passed_over() -> None:
    req = request([3], 2, 4)
    del req.output_ids[-1]
    for told in (Ids("q", 1, [5]), Ids("r", 0, [5]), Ids("r", 2, [5])):
        learn(scheduler(waiting=req), told)
    assert not hasattr(req, "toolkit_heard")


def test_what_the_grammar_does_not_allow_ends_it() -> None:
    req = request([3], 2, 4, Grammar([5, 7]))
    assert "grammar" in _settle(scheduler(), req, 3, [5, 6])
    assert req.ended
