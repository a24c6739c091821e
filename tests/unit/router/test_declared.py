"""The tables of request validation over what each release of SGLang declares."""

import pytest

from toolkit.router.validate.declared import (
    CHECKS,
    DECLARED,
    RELEASES,
    SAMPLING,
    default,
    in_release,
    lacks,
    oldest,
    since,
)
from toolkit.router.validate.endpoints import ENDPOINTS
from toolkit.router.validate.endpoints import SAMPLING as PARAMETERS
from toolkit.router.validate.field import Field, row, tables
from toolkit.router.validate.meanings import alias, meanings, reached
from toolkit.router.validate.models import model
from toolkit.router.validate.validators import TAKEN
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
_DROPPED = "the router drops data_parallel_rank"
_UNREAD = "it is of a part that workers check"
LEFT = {
    "chat._handle_deprecated_dp_rank": _DROPPED,
    "completions._handle_deprecated_dp_rank": _DROPPED,
    "responses._handle_deprecated_dp_rank": _DROPPED,
    "chat.set_tool_choice_default": "the row of tool_choice takes null",
    "chat.normalize_reasoning_inputs": "the rule of reasoning",
    "chat.set_json_schema": "the rule of response_format",
    "responses.normalize_reasoning_to_thinking": _UNREAD,
    "responses.normalize_responses_input": _UNREAD,
    "ChatCompletionMessageContentImageURL.validate_content_hash": "a worker says what is wrong",
    "Tool._propagate_defer_loading": "it checks nothing",
}
"""Validators of SGLang's that the router needs no copy of."""
LOOKED_AT = {
    "chat.normalize_reasoning_inputs": ("0.5.23", "one level more: the rule reads it in the types"),
}
"""Validators whose code a later release changed, and what came of it."""


@pytest.mark.parametrize("place", TABLES)
def test_every_field_of_every_release_has_a_row(place: str) -> None:
    new = {name: since(place, name) for name in DECLARED[place].keys() - TABLES[place].keys()}
    assert new == {}, f"say in toolkit/router/validate what becomes of {sorted(new)} of {place}"
    assert TABLES[place].keys() - DECLARED[place].keys() == ADDED[place]


def test_every_validator_of_every_release_has_been_looked_at() -> None:
    found = {f"{place}.{name}": texts for place in CHECKS for name, texts in CHECKS[place].items()}
    new = found.keys() - TAKEN.keys() - LEFT.keys()
    assert new == set(), "copy it into toolkit/router/validate/validators.py, or say why not"
    assert found.keys() == TAKEN.keys() | LEFT.keys()
    changed = {name: [*texts][1:] for name, texts in found.items() if len(texts) > 1}
    assert changed == {name: [release] for name, (release, _) in LOOKED_AT.items()}


@pytest.mark.parametrize("release", ["", *RELEASES])
def test_every_type_of_every_release_can_be_read(release: str) -> None:
    names = meanings(release)
    for place, rows in DECLARED.items():
        for name in rows:
            field = TABLES.get(place, {}).get(name)
            if place != SAMPLING and (field is None or field.typed):
                names.field(place, name)


def test_a_nested_part_is_that_of_the_release() -> None:
    def strict(release: str) -> object:
        return meanings(release)["Function"].model_fields["strict"].annotation

    assert strict("0.5.22") is bool
    assert strict("0.5.23") == strict("") == bool | None
    part = "ChatCompletionMessageContentAudioPart"
    assert "audio_url" in meanings("0.5.17")[part].model_fields and alias(part, "0.5.17") is None
    assert alias(part, "0.5.20") is not None
    older, newer = (set(reached(["List[Tool]"], release)) for release in ("0.5.22", "0.5.23"))
    assert newer - older == {
        ("Function", "strict", "Optional[bool] = None"),
        ("Function", "key_order", "List[str] = []"),
        ("Function", "_capture_key_order", CHECKS["Function"]["_capture_key_order"]["0.5.23"]),
    }
    with pytest.raises(NameError, match="NoSuchThing"):
        meanings("").read("List[NoSuchThing]")


def test_releases_that_say_the_same_share_a_model() -> None:
    made = [model("chat", frozenset(), release) for release in RELEASES]
    assert made[1] is made[2] is made[3]
    assert len({*made}) == 3
    assert model("chat", frozenset()) is made[-1]


def test_a_default_is_sglang_s_unless_a_row_has_one() -> None:
    assert default("generate", "log_metrics") is True
    assert default("chat", "reasoning") is None
    assert default("responses", "routed_experts_start_len") == 0, "as at other endpoints"
    assert default("score", "temperature") is None, "bounds beside it: nobody needs it"
    assert next(row("log_metrics", "generate", "a reason")).default is True
    assert next(row("log_metrics", "generate", "a reason", default=3)).default == 3
    with pytest.raises(ValueError, match=r"chat\.n is in the table twice"):
        tables(row("n", "chat", "a reason"), row("seed n", "chat completions", "another"))


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
    types = DECLARED["score"]["label_token_ids"]
    assert in_release(types, "0.5.20") == "Optional[List[int]] = None"
    assert in_release(types, "0.5.23") != "Optional[List[int]] = None"


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
