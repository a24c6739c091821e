"""Hostile bodies of every kind, at every field that reaches a parser: passed or refused with 400,
at a cost that is linear in their size."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cpu_time import cpu_s
from tests.unit.router.test_validation import BASES
from toolkit.router.errors import ApiError
from toolkit.router.validate.check import check
from toolkit.router.validate.declared import declaration
from toolkit.router.validate.endpoints import ENDPOINTS, SAMPLING
from toolkit.router.validate.field import Field
from toolkit.router.validate.limits import BodyLimits
from toolkit.router.validate.models import prepare
from toolkit.settings.router.permissions import ALLOWABLE

LIMITS = BodyLimits(vocabulary=1000, allow=frozenset(ALLOWABLE))
CALLS = 60
"""Python functions that one byte of a body may call at most."""
BYTE_S = 10e-6
"""And what it may cost: some 0.3 us is usual, and a square shows within some KiB."""
ONCE_S = 0.05
"""And what any body may: patterns are compiled."""
LONGEST = 8_000


def _parses(field: Field) -> bool:
    """Whether something looks into its values: a rule, or a type with parts."""
    kind = declaration(field.place, field.name, "").partition(" = ")[0]
    return field.passes(LIMITS.allow) and kind not in ("int", "float", "bool")


TABLES = ENDPOINTS | {"sampling_params": SAMPLING}
FIELDS = [
    (table, field)
    for table, fields in TABLES.items()
    for field in fields.values()
    if _parses(field)
]

GRAMMAR = ['"', "[", "(", ")", "{", "{ 1", "{0,9}", "*", "?", "|", " ", "\\", "a", "a ::= ", "#"]
PATTERN = ["[", "(", ")", "(?:", "(?=", "(?i)", "{9,}", "{999}", "*", "+", "?", "|", ".", "^", "$",
           "\\", "\\w", "\\1", "[^a]", "[\\x00-\\uffff]", "a", "\x01"]  # fmt: skip
LETTERS = ["a", "9", "/", "~1", "-", "e", " ", ":", "data:", "http://", "toolkit", "_", "\u0301",
           "\u0327", "\ud800", "\u00b7", "é", "日", "\x00", "\n", "{", "[", '"']  # fmt: skip
COUNTS = st.sampled_from([0, 1, 2, 7, 60, 500, 4000, LONGEST])
LEAST = st.integers(0, 9)


def _repeated(before: str, pieces: list[str], after: str, count: int) -> str:
    piece = "".join(pieces)
    return before + piece * min(count, LONGEST // len(piece)) + after


def _nested(first: str, inside: str, last: str, count: int) -> str:
    count = min(count, LONGEST // (len(first) + len(last)))
    return first * count + inside + last * count


def _chain(between: str, count: int, back: int) -> str:
    """Rules that need the next one; the last needs one of the first, or nothing."""
    count = min(count, 1000)
    rules = [f"a{at} ::= {between} a{at + 1}" for at in range(count)]
    return "\n".join(["root ::= a0", *rules, f"a{count} ::= " + (f"a{back}" if back else '"a"')])


def _texts(alphabet: list[str]) -> st.SearchStrategy[str]:
    tokens = st.sampled_from(alphabet)
    return st.one_of(
        st.builds(_repeated, tokens, st.lists(tokens, min_size=1, max_size=3), tokens, COUNTS),
        st.builds(_nested, tokens, tokens, tokens, COUNTS),
    )


CHAINS = st.builds(_chain, st.sampled_from(["", '"a"', "b", "a0?"]), COUNTS, LEAST)
GRAMMARS = st.one_of(_texts(GRAMMAR), CHAINS)
PATTERNS = _texts(PATTERN)
TEXTS = st.one_of(_texts(LETTERS), GRAMMARS, PATTERNS)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(), TEXTS, st.just(10**4200)
)
KEYS = st.one_of(
    _texts(LETTERS),
    st.sampled_from(
        ["$ref", "allOf", "anyOf", "oneOf", "$defs", "type", "schema", "json_schema", "format",
         "structures", "triggers", "begin", "end", "role", "content", "text", "image_url", "url",
         "function", "parameters", "name", "input_schema", "source", "tool_calls", "toolkit", "1"]
    ),
)  # fmt: skip
PLACES_IN_SCHEMA = st.sampled_from(
    ["", "/allOf/0", "/anyOf/1", "/$ref", "/x/0", "/allOf/9999999999"]
)


def _mutual(count: int, step: int, word: str, place: str) -> dict[str, Any]:
    """Schemas that refer to places within each other."""
    count = min(count, 1000)
    defs = {
        f"a{at}": {word: [{"anyOf": [{"$ref": f"#/$defs/a{at + step}{place}"}]}]}
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
FITTING = {
    "_ebnf": GRAMMARS,
    "_regex": PATTERNS,
    "_stop_regex": st.one_of(PATTERNS, st.lists(PATTERNS, max_size=4)),
    "_json_schema": SCHEMAS.map(json.dumps),
    "_structural_tag": SCHEMAS.map(lambda schema: json.dumps({"format": {"json_schema": schema}})),
    "_response_format": SCHEMAS.map(
        lambda schema: {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    ),
}
"""What a rule takes for its own, and reads to the end."""
CASES = st.one_of(
    st.tuples(
        st.sampled_from([(table, field.name) for table, field in FIELDS]),
        ANY,
    ),
    *(
        st.tuples(st.just((table, field.name)), FITTING[field.rule.wrong.__name__])
        for table, field in FIELDS
        if field.rule is not None and field.rule.wrong.__name__ in FITTING
    ),
)
"""A field, and a value for it."""


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
@given(CASES)
def test_a_hostile_value_passes_or_is_a_400_and_costs_what_its_size_allows(
    case: tuple[tuple[str, str], Any],
) -> None:
    endpoint, body = _body(*case)
    size = len(json.dumps(body))
    if size > 200_000:
        return
    most = ONCE_S + BYTE_S * size

    def once() -> None:
        re.purge()  # patterns are compiled each time
        try:
            check(endpoint, body, LIMITS)
        except ApiError as error:
            assert error.status == 400
            assert len(error.body(endpoint)) < 100_000

    with _counted() as count:
        once()
    assert count[0] < 2000 + CALLS * size
    assert cpu_s(once, most) <= most
