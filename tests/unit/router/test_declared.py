"""The tables of request validation over what each release of SGLang declares."""

from typing import Any

import pytest

from toolkit.router.validate import shapes
from toolkit.router.validate.declared import (
    DECLARED,
    RELEASES,
    SAMPLING,
    lacks,
    oldest,
    since,
    type_in,
)
from toolkit.router.validate.endpoints import ENDPOINTS
from toolkit.router.validate.field import Field
from toolkit.router.validate.sampling import SAMPLING as PARAMETERS
from toolkit.setup.releases import PROVEN

TABLES: dict[str, dict[str, Field]] = ENDPOINTS | {SAMPLING: PARAMETERS}
ADDED: dict[str, set[str]] = {
    # Read by validators of SGLang's (chat) or by nobody; one spelling for all endpoints.
    "chat": {"reasoning", "background", "custom_labels"},
    "completions": {"background"},
    "generate": set(),
    "messages": {"rid", "custom_params"},
    "count_tokens": {"rid", "custom_params"},
    "responses": {
        "conversation",
        "custom_labels",
        "custom_params",
        "prompt",
        "return_routed_experts",
        "routed_experts_start_len",
        "session_params",
    },
    "embeddings": set(),
    "classify": set(),
    "rerank": {"rid"},
    "score": {"rid"},
    SAMPLING: set(),
}
"""Rows for names that no release declares."""
UNREAD = {
    "ChatCompletionMessageContentImageURL.max_long_side_pixel": "the size of a picture",
    "ChatCompletionMessageContentVideoURL.max_long_side_pixel": "the size of a picture",
    "ChatCompletionMessageGenericParam.prefix": "the answer goes on from this message",
    "Function.key_order": "of a tool's arguments",
}
"""Parts of messages and tools that `shapes` does not check. They go on as they came, and a worker
says what is wrong with one."""


@pytest.mark.parametrize("place", TABLES)
def test_every_field_of_every_release_has_a_row(place: str) -> None:
    new = {name: since(place, name) for name in DECLARED[place].keys() - TABLES[place].keys()}
    assert new == {}, f"say in toolkit/router/validate what becomes of {sorted(new)} of {place}"
    assert TABLES[place].keys() - DECLARED[place].keys() == ADDED[place]


def test_every_part_of_a_message_is_known() -> None:
    new = set()
    for place in DECLARED.keys() - TABLES.keys():
        ours = getattr(shapes, place).model_fields
        known = set(ours) | {field.alias for field in ours.values()}
        new |= {f"{place}.{name}" for name in DECLARED[place].keys() - known}
        assert set(ours) <= DECLARED[place].keys()
    assert new == UNREAD.keys()


def test_types_that_a_release_changed_are_checked_by_workers() -> None:
    """A row has one type. Where releases differ it has none."""
    for place, rows in TABLES.items():
        for name, row in rows.items():
            types = {kind for kind in DECLARED[place].get(name, {}).values() if kind is not None}
            assert len(types) <= 1 or row.type is Any, (place, name, types)


def test_releases_are_those_that_are_supported() -> None:
    assert set(PROVEN) <= set(RELEASES)
    assert list(RELEASES) == sorted(RELEASES, key=lambda each: [*map(int, each.split("."))])
    told = {release for rows in DECLARED.values() for row in rows.values() for release in row}
    assert told <= set(RELEASES)


def test_since_and_until() -> None:
    assert since("chat", "watermark") == "0.5.22"
    assert since("chat", "reasoning") == ""
    assert lacks("chat", "watermark", "0.5.21") and not lacks("chat", "watermark", "0.5.22")
    assert not lacks("chat", "watermark", ""), "nobody knows"
    assert not lacks("chat", "reasoning", "0.5.17"), "no release declares it"
    gone = [lacks("generate", "mm_data_mooncake", release) for release in RELEASES[:2]]
    assert gone == [False, True]
    assert type_in("score", "label_token_ids", "0.5.20") == "Optional[List[int]]"
    assert type_in("score", "label_token_ids", "0.5.23") != "Optional[List[int]]"


@pytest.mark.parametrize(
    ("workers", "stands_for"),
    [
        ((), ""),
        (("",), ""),
        (("unknown", "0.5.22"), "0.5.22"),
        (("0.5.23", "0.5.21", "0.5.22"), "0.5.21"),
        (("0.5.22.post1",), "0.5.22"),
        (("0.5.18",), "0.5.17"),
        (("0.4.9", "0.5.23"), "0.5.17"),
        (("0.10.0",), RELEASES[-1]),
    ],
)
def test_the_oldest_worker_counts(workers: tuple[str, ...], stands_for: str) -> None:
    assert oldest(frozenset(workers)) == stands_for
