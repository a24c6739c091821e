"""Splitting bodies, and what is left alone."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.contract.ticket import Ticket, read
from toolkit.router.errors import ApiError
from toolkit.router.request import Wanted, new_room, ticket_body
from toolkit.router.request_view import BLOCK_BYTES
from toolkit.router.resumable import why_not
from toolkit.router.splitting import parse

HELLO = [{"role": "user", "content": "hello"}]


def split(path: str, body: dict[str, Any], **options: Any) -> Any:
    return parse(path, json.dumps(body).encode(), **options)


def test_a_single_request_is_not_touched() -> None:
    body = {"prompt": [1, 2, 3], "n": 1, "anything": {"x": None}, "stream": True}
    job = split("/v1/completions", body)
    assert not job.merged
    assert job.sub_requests[0].body == body
    assert job.sub_requests[0].view.prompt_tokens == 3


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.integers(1, 4))
def test_every_prompt_times_n_in_sglang_s_order(prompts: list[str], n: int) -> None:
    job = split("/v1/completions", {"prompt": prompts, "n": n})
    assert [sub_request.body["prompt"] for sub_request in job.sub_requests] == [
        p for p in prompts for _ in range(n)
    ]
    assert [sub_request.index for sub_request in job.sub_requests] == list(range(len(prompts) * n))
    assert len({sub_request.rid for sub_request in job.sub_requests}) == len(job.sub_requests)


def test_generate_takes_each_prompt_s_own_fields() -> None:
    body = {
        "input_ids": [[1], [2, 3]],
        "rid": ["a", "b"],
        "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}],
        "return_logprob": True,
    }
    job = split("/generate", body)
    assert [s.rid for s in job.sub_requests] == ["a", "b"]
    assert [s.body["sampling_params"]["max_new_tokens"] for s in job.sub_requests] == [1, 2]
    assert all(s.body["return_logprob"] is True for s in job.sub_requests)


@pytest.mark.parametrize("rid", ['a"b', "\ud800", "a\nb", "", "x" * 257, 7])
@pytest.mark.parametrize("n", [1, 2])
def test_a_rid_that_cannot_be_used_is_replaced_in_a_list_too(rid: Any, n: int) -> None:
    params = {"n": n}
    alone = split("/generate", {"text": "a", "rid": rid, "sampling_params": params})
    body = {"text": ["a", "b"], "rid": ["good", rid], "sampling_params": params}
    rids = [sub_request.rid for sub_request in split("/generate", body).sub_requests]
    assert len(set(rids)) == 2 * n
    assert all(found.startswith("good") for found in rids[:n])
    for found in [*rids[n:], alone.rid]:
        assert re.fullmatch(r"[0-9a-f]{32}(_\d)?", found)


def test_of_the_samples_of_a_prompt_one_is_the_first() -> None:
    job = split("/v1/completions", {"prompt": ["a", "b"], "n": 3})
    assert [sub_request.first_sample for sub_request in job.sub_requests] == [
        True,
        False,
        False,
    ] * 2


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/completions", {"prompt": "a", "n": -1}, "at least 1"),
        ("/v1/completions", {"prompt": "a", "best_of": 4, "n": 2}, "best_of"),
        ("/generate", {"text": "a", "sampling_params": {"beam_width": 4}}, "beam_width"),
        ("/v1/chat/completions", {"messages": HELLO, "n": 10**6}, "at most"),
        ("/v1/chat/completions", {"model": "a"}, "'messages'.*Field required"),
        ("/v1/completions", {"model": "a"}, "'prompt'.*Field required"),
    ],
)
def test_what_cannot_work_is_a_400_that_says_why(path: str, body: Any, words: str) -> None:
    with pytest.raises(ApiError, match=words) as error:
        split(path, body)
    assert error.value.status == 400


@pytest.mark.parametrize("body", [{"prompt": 5}, {"prompt": "a", "n": "two"}, {"prompt": []}])
def test_wrong_types_is_refused(body: Any) -> None:
    with pytest.raises(ApiError) as error:
        split("/v1/completions", body)
    assert error.value.status == 400


@pytest.mark.parametrize(
    "fields", [{"text": "a\ud800"}, {"sampling_params": {"stop": ["\ud800"]}}, {"\ud800": 1}]
)
def test_half_a_surrogate_pair_is_no_text(fields: Any) -> None:
    with pytest.raises(ApiError, match=r"holds '\\ud800'"):
        split("/generate", {"text": "a", **fields})


def test_experts_are_kept_only_where_that_is_allowed() -> None:
    body = {"text": ["a", "b"]}
    may = frozenset({"capture"})
    assert all(s.capture for s in split("/generate", body, capture=True, allow=may).sub_requests)
    assert not any(s.capture for s in split("/generate", body, allow=may).sub_requests)
    with pytest.raises(ApiError, match="capture_experts: true"):
        split("/generate", body, capture=True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"input_ids": [0, 99]}),
        ("/generate", {"input_ids": [[0], [99]]}),
        ("/v1/completions", {"prompt": [0, 99]}),
    ],
)
def test_ids_beyond_the_vocabulary_are_refused(path: str, body: Any) -> None:
    raw = json.dumps(body).encode()
    assert parse(path, raw, vocabulary=100).sub_requests
    assert parse(path, raw).sub_requests
    with pytest.raises(ApiError, match=r"token id 99; valid range is \[0, 99\)"):
        parse(path, raw, vocabulary=99)


@given(st.binary(max_size=40))
def test_any_bytes_parse_or_are_a_400(raw: bytes) -> None:
    try:
        parse("/generate", raw)
    except ApiError as error:
        assert error.status == 400
        json.loads(error.body("generate"))


def test_blocks_are_shared_exactly_as_far_as_the_texts_are() -> None:
    same = "x" * (2 * BLOCK_BYTES)
    one = split("/v1/completions", {"prompt": same + "a" * BLOCK_BYTES}, wanted=Wanted(blocks=True))
    two = split("/v1/completions", {"prompt": same + "b" * BLOCK_BYTES}, wanted=Wanted(blocks=True))
    a, b = one.sub_requests[0].view.blocks, two.sub_requests[0].view.blocks
    assert len(a) == len(b) == 3
    assert a[:2] == b[:2]
    assert a[2] != b[2]


def test_resumed_ids_keep_the_client_s_own_custom_params() -> None:
    sub_request = split(
        "/v1/completions", {"prompt": "a", "custom_params": {"mine": 1}}
    ).sub_requests[0]
    assert ticket_body(sub_request, "rid", "key") == sub_request.body
    sub_request.resume_ids = [4, 5]
    custom = ticket_body(sub_request, "rid", "key")["custom_params"]
    assert custom["mine"] == 1
    assert read(custom, "rid", "key") == Ticket(resume=(4, 5))
    sub_request = split("/generate", {"text": "a", "rid": "name"}).sub_requests[0]
    sub_request.resume_ids, sub_request.capture = [4], True
    params = ticket_body(sub_request, "rid", "key")["sampling_params"]
    assert read(params["custom_params"], "rid", "key") == Ticket(resume=(4,), capture="name")
    with pytest.raises(ApiError, match="have no key"):
        ticket_body(sub_request, "rid", None)


@pytest.mark.parametrize(
    ("path", "asked", "goes_on"),
    [
        ("/v1/completions", {}, True),
        ("/v1/completions", {"temperature": 1.0}, True),
        ("/v1/completions", {"logprobs": 1}, False),
        ("/v1/completions", {"logprobs": 0}, False),
        ("/v1/completions", {"seed": 7}, False),
        ("/v1/completions", {"seed": 7, "temperature": 0}, True),
        ("/generate", {"return_logprob": True}, False),
        ("/generate", {"sampling_params": {"sampling_seed": 7}}, False),
        ("/generate", {"sampling_params": {"sampling_seed": 7, "temperature": 0}}, True),
    ],
)
def test_what_went_with_a_worker_is_not_made_up(path: str, asked: Any, goes_on: bool) -> None:
    prompt = {"text": "a"} if path == "/generate" else {"prompt": "a"}
    assert (why_not(split(path, prompt | asked).sub_requests[0]) is None) == goes_on


def test_rooms_are_63_bits_and_not_zero() -> None:
    assert all(0 < new_room() < 2**63 for _ in range(1000))


@given(st.integers(1, 16), st.data())
def test_a_room_belongs_to_its_prefill_rank(size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, size - 1))
    room = new_room(size, rank)
    assert 0 < room < 2**63
    assert room % size == rank


def view_of(path: str, body: dict[str, Any], **options: Any) -> Any:
    return (
        split(path, {"prompt": "a", "messages": HELLO, "text": "a", **body}, **options)
        .sub_requests[0]
        .view
    )


@pytest.mark.parametrize(
    ("path", "body", "limits"),
    [
        ("/v1/chat/completions", {"max_tokens": 7, "min_tokens": 2}, (7, 2)),
        ("/v1/chat/completions", {"max_tokens": 7, "max_completion_tokens": 9}, (9, 0)),
        ("/v1/completions", {"max_tokens": 7, "ignore_eos": True}, (7, 7)),
        ("/v1/completions", {"max_completion_tokens": 9}, (0, 0)),
        ("/generate", {"sampling_params": {"max_new_tokens": 5, "min_new_tokens": 5}}, (5, 5)),
        ("/generate", {"sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}, (5, 5)),
        ("/generate", {"max_tokens": 7}, (0, 0)),
        ("/v1/completions", {"max_tokens": "7", "min_tokens": True}, (7, 1)),
        ("/v1/completions", {"max_tokens": 2.0, "ignore_eos": 1}, (2, 2)),
    ],
)
def test_the_limits_of_a_request_are_known(path: str, body: Any, limits: Any) -> None:
    view = view_of(path, body)
    assert (view.max_new_tokens, view.min_new_tokens) == limits


def test_users_and_hashes_are_made_where_somebody_wants_them() -> None:
    body = {"user": "ann"}
    plain = view_of("/v1/completions", body, routing_key="k", now=3.0)
    assert (plain.user, plain.prompt_hash, plain.now) == (None, None, 3.0)
    users = Wanted(users=True)
    ann = view_of("/v1/completions", body, wanted=users).user
    assert ann == view_of("/v1/chat/completions", body, wanted=users).user
    assert "ann" not in str(ann)
    key = view_of("/generate", body, wanted=users, routing_key="k").user
    assert key not in (None, ann)
    assert view_of("/generate", {"routing_key": "k"}, wanted=users).user == key
    for odd in (7, None, ["a"], {}, ""):  # type: ignore[var-annotated]
        assert view_of("/generate", {"user": odd, "session_id": ""}, wanted=users).user is None


@pytest.mark.parametrize("path", ["/v1/completions", "/generate", "/v1/chat/completions"])
def test_equal_prompts_have_equal_hashes(path: str) -> None:
    name = {"/v1/completions": "prompt", "/generate": "input_ids"}.get(path, "messages")

    def hash_of(prompt: Any, **fields: Any) -> Any:
        body = {name: prompt, **fields}
        return split(path, body, wanted=Wanted(hashes=True)).sub_requests[0].view.prompt_hash

    chat = path == "/v1/chat/completions"
    one, two = ([{"role": "user", "content": c}] if chat else [1, ord(c)] for c in "ab")
    assert hash_of(one) == hash_of(one, max_tokens=3) is not None
    assert hash_of(one) != hash_of(two)
