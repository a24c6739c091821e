"""Hostile bodies of every kind, at every field that reaches a parser: passed or refused with 400,
at a cost that is linear in their size."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.router.test_door import BASES
from toolkit.router.door.check import check
from toolkit.router.door.endpoints import ENDPOINTS
from toolkit.router.door.field import Field
from toolkit.router.door.limits import ALLOWABLE, Limits
from toolkit.router.door.models import prepare
from toolkit.router.door.sampling import SAMPLING
from toolkit.router.errors import ApiError

LIMITS = Limits(vocabulary=1000, allow=frozenset(ALLOWABLE))
CALLS = 60
"""Python functions that one byte of a body may call at most."""
BYTE_S = 20e-6
"""And what it may cost: some 0.3 us is usual, and a square shows within a few KiB."""
ONCE_S = 0.1
"""And what any body may: patterns are compiled."""


def _parses(field: Field) -> bool:
    """Whether something looks into its values: a rule, or a type with parts."""
    return field.passes(LIMITS.allow) and field.type not in (int, float, bool)


PLACES = [
    (endpoint, field.name)
    for endpoint, fields in ENDPOINTS.items()
    for field in fields.values()
    if _parses(field)
] + [("sampling_params", field.name) for field in SAMPLING.values() if _parses(field)]

TOKENS = st.sampled_from(
    ['"a"', '"', "[", "]", "(", ")", "{", "}", "{ 1", "{0,9}", "{999}", "*", "+", "?", "|", ".",
     "^", "$", "\\", "\\w", "\\1", "(?i)", "(?:", "(?=", "[^a]", "[\\x00-\\uffff]", "a ::= ", "a",
     "b ", " ", "\n", "#", "/", "~1", "9", "-", "e", "\u0301", "\u0327", "\ud800", "\u00b7", "é",
     "日", "\x00", "\x01", "data:", "http://", ":", "toolkit", "_"]
)  # fmt: skip
COUNTS = st.sampled_from([0, 1, 2, 7, 60, 500, 2000])
LEAST = st.integers(0, 9)


def _repeated(pieces: list[str], count: int) -> str:
    return ("".join(pieces) * count)[:6000]


def _nested(first: str, inside: str, last: str, count: int) -> str:
    count = min(count, 3000 // max(len(first) + len(last), 1))
    return first * count + inside + last * count


def _chain(name: str, between: str, count: int, back: int) -> str:
    """Rules that need the next one; the last needs one of the first, or nothing."""
    count = min(count, 400)
    rules = [f"{name}{at} ::= {between}{name}{at + 1}" for at in range(count)]
    return "\n".join([f"root ::= {name}0", *rules, f"{name}{count} ::= {name}{back}"])


TEXTS = st.one_of(
    st.builds(_repeated, st.lists(TOKENS, min_size=1, max_size=4), COUNTS),
    st.builds(_nested, TOKENS, TOKENS, TOKENS, COUNTS),
    st.builds(_chain, st.sampled_from(["a", "rule-"]), TOKENS, COUNTS, LEAST),
    st.builds("{}{}{}".format, TOKENS, st.builds(_repeated, st.lists(TOKENS, min_size=1), COUNTS),
              TOKENS),
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(), TEXTS, st.just(10**4200)
)
KEYS = st.one_of(
    TEXTS,
    st.sampled_from(
        ["$ref", "allOf", "anyOf", "oneOf", "$defs", "type", "schema", "json_schema", "format",
         "structures", "triggers", "begin", "end", "role", "content", "text", "image_url", "url",
         "function", "parameters", "name", "input_schema", "source", "tool_calls", "toolkit", "1"]
    ),
)  # fmt: skip
PLACES_IN_SCHEMA = st.sampled_from(
    ["", "/allOf/0", "/anyOf/1", "/$ref", "/x/0", "/allOf/99999999999"]
)


def _mutual(count: int, step: int, word: str, place: str) -> dict[str, Any]:
    """Schemas that refer to places within each other."""
    count = min(count, 300)
    defs = {
        f"a{at}": {word: [{"anyOf": [{"$ref": f"#/$defs/a{(at + step) % (count + 1)}{place}"}]}]}
        for at in range(count)
    }
    return {"$ref": "#/$defs/a0", "$defs": defs}


def _levels(count: int, inside: Any, word: str) -> Any:
    for _ in range(min(count, 190)):
        inside = {word: [inside]}
    return inside


SCHEMAS = st.builds(
    _mutual, COUNTS, LEAST, st.sampled_from(["allOf", "anyOf", "oneOf"]), PLACES_IN_SCHEMA
)
LEAVES = st.one_of(SCALARS, SCHEMAS)
MANY = st.one_of(
    LEAVES,
    st.builds(lambda each, count: [each] * min(count, 300), SCALARS, COUNTS),
    st.builds(
        lambda key, each, count: {f"{key}{at}": each for at in range(min(count, 300))},
        st.sampled_from(["", "a", "toolkit"]), SCALARS, COUNTS,
    ),
)  # fmt: skip
VALUES = st.builds(
    _levels,
    COUNTS,
    st.recursive(
        MANY,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)
        ),
        max_leaves=4,
    ),
    KEYS.map(lambda key: key[:20]),
)
ANY = st.one_of(TEXTS, SCHEMAS, VALUES, st.one_of(SCHEMAS, VALUES).map(json.dumps))


def _body(place: tuple[str, str], value: Any) -> tuple[str, dict[str, Any]]:
    endpoint, name = place
    if endpoint == "sampling_params":
        return "generate", {"text": "hi", "sampling_params": {name: value}}
    return endpoint, {**BASES[endpoint], name: value}


@contextmanager
def _counted() -> Iterator[list[int]]:
    """How many Python functions were called."""
    count = [0]

    def note(frame: FrameType, event: str, _: Any) -> None:
        count[0] += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield count
    finally:
        sys.setprofile(before)


@pytest.fixture(scope="module", autouse=True)
def made() -> None:
    prepare(LIMITS.allow)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PLACES), ANY)
def test_a_hostile_value_passes_or_is_a_400_and_costs_what_its_size_allows(
    place: tuple[str, str], value: Any
) -> None:
    endpoint, body = _body(place, value)
    size = len(json.dumps(body))
    if size > 200_000:
        return
    begin = time.process_time()
    try:
        with _counted() as count:
            check(endpoint, body, LIMITS)
    except ApiError as error:
        assert error.status == 400
        assert len(error.body(endpoint)) < 100_000
    taken = time.process_time() - begin
    assert count[0] < 2000 + CALLS * size
    assert taken < ONCE_S + BYTE_S * size
