"""A target puts the tokens that came with the KV in place of their placeholders, or ends the
request."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.move.incoming import _settle

VOCABULARY = 100
IDS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)


class Grammar:
    """Accepts what it is told to, in order."""

    def __init__(self, allowed: list[int]) -> None:
        self.allowed, self.current_token = list(allowed), 1

    def accept_token(self, token: int) -> None:
        if not self.allowed or self.allowed.pop(0) != token:
            raise RuntimeError("no")


def scheduler(overlap: bool = True) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=VOCABULARY),
        enable_overlap=overlap,
        disaggregation_mode=SimpleNamespace(value="decode"),
    )


def request(known: list[int], late: int, arrived: int, grammar: Any = None) -> Any:
    ended: list[str] = []
    return SimpleNamespace(
        origin_input_ids=[1],
        output_ids=array("q", [*known, *[0] * late, arrived]),
        toolkit_late=late,
        grammar=grammar,
        set_finish_with_abort=ended.append,
        ended=ended,
    )


@given(IDS, IDS, st.integers(0, 99), st.booleans())
def test_late_tokens_stand_where_they_were_generated(
    known: list[int], late: list[int], arrived: int, overlap: bool
) -> None:
    req = request(known, len(late), arrived, Grammar(late))
    assert _settle(scheduler(overlap), req, len(late), [len(late), *late]) == ""
    assert list(req.output_ids) == [*known, *late, arrived]
    before = [*known, *late]
    counted = [before[0], *before[:-1]] if overlap else before
    assert req.toolkit_penalty_history == counted
    assert req.toolkit_late == 0
    assert req.grammar.current_token is None and not req.grammar.allowed


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([1, 5, 6], "came with 1 tokens, not with 2"),
        ([0, 0, 0], "came with 0 tokens"),
        ([2, 5, VOCABULARY], "outside the vocabulary"),
        ([2, -1, 5], "outside the vocabulary"),
    ],
)
def test_what_cannot_be_is_said(said: list[int], why: str) -> None:
    assert why in _settle(scheduler(), request([3], 2, 4), 2, said)


def test_what_the_grammar_does_not_allow_ends_it() -> None:
    req = request([3], 2, 4, Grammar([5, 7]))
    assert "grammar" in _settle(scheduler(), req, 2, [2, 5, 6])
    assert req.ended
