"""The router process against stand-in workers: what clients and workers are sent."""

import json

import pytest

from tests.standin.cluster import Cluster
from tests.standin.streams import seed_of, token_id, word
from tests.unit.router.cluster_calls import (
    PROMPT,
    _whole,
    bodies,
    events,
    expected,
    idle,
    post,
    prompt_of,
    text_of,
)


@pytest.mark.slow
@pytest.mark.parametrize("dispatch", ["late", "concurrent"])
async def test_every_endpoint_streaming_and_not(dispatch: str) -> None:
    async with Cluster(config={"dispatch": dispatch}) as cluster:
        for path, body in bodies(8).items():
            status, raw = await post(cluster, path, body)
            assert status == 200
            assert text_of(path, raw) == expected(prompt_of(path), 8)
            status, raw = await post(cluster, path, {**body, "stream": False})
            answer = json.loads(raw)
            assert status == 200
            got = answer["text"] if path == "/generate" else _whole(answer)
            assert got == expected(prompt_of(path), 8)
        state = await cluster.until(idle)
        assert state["retried"] == 0


async def test_what_workers_are_sent() -> None:
    async with Cluster(worker_args=["--record"]) as cluster:
        body = {"messages": PROMPT, "max_tokens": 2, "stream": True, "odd_field": [1],
                "stream_options": {"include_usage": True}}  # fmt: skip
        await post(cluster, "/v1/chat/completions", body)
        prefill = (await cluster.stats("prefill-0"))["bodies"][-1]
        decodes = [await cluster.stats(f"decode-{i}") for i in range(2)]
        decode = [b for stats in decodes for b in stats["bodies"]][-1]
        assert prefill["odd_field"] == decode["odd_field"] == [1]
        assert prefill["stream"] is False
        assert "stream_options" not in prefill
        assert decode["stream_options"] == {"include_usage": True}
        assert prefill["bootstrap_room"] == decode["bootstrap_room"]
        assert 0 < decode["bootstrap_room"] < 2**63
        assert prefill["rid"] == decode["rid"]


@pytest.mark.parametrize("dispatch", ["late", "concurrent"])
async def test_the_first_body_says_which_rank_will_have_the_kv(dispatch: str) -> None:
    """A prefill rank that is not told registers by a blocking POST on its scheduler's thread."""
    async with Cluster(
        worker_args=["--record"],
        role_config={"prefill": {"dp_size": 2}},
        config={"dispatch": dispatch, "prefill_policy": "round_robin"},
    ) as cluster:
        for _ in range(4):
            await post(cluster, "/v1/chat/completions", {"messages": PROMPT, "max_tokens": 2})
        prefills = (await cluster.stats("prefill-0"))["bodies"]
        assert {body["routed_dp_rank"] for body in prefills} == {0, 1}
        told = {body["bootstrap_room"]: body["disagg_prefill_dp_rank"] for body in prefills}
        assert [body["routed_dp_rank"] for body in prefills] == [*told.values()]
        decodes = [b for i in range(2) for b in (await cluster.stats(f"decode-{i}"))["bodies"]]
        assert told == {b["bootstrap_room"]: b["disagg_prefill_dp_rank"] for b in decodes}
        assert all("routed_dp_rank" not in body for body in decodes)


@pytest.mark.parametrize("stream", [True, False])
async def test_n_and_batches_are_split_and_merged(stream: bool) -> None:
    async with Cluster(worker_args=["--record"]) as cluster:
        body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 5, "stream": stream,
                "stream_options": {"include_usage": True} if stream else None}  # fmt: skip
        status, raw = await post(cluster, "/v1/completions", body)
        assert status == 200
        want = [expected(p, 5) for p in ("a", "a", "b", "b")]
        if stream:
            got = events(raw)
            assert len({event["id"] for event in got}) == 1
            choices = [choice for event in got for choice in event["choices"]]
            texts = ["".join(c["text"] for c in choices if c["index"] == i) for i in range(4)]
            usages = [event["usage"] for event in got if event.get("usage")]
            assert len(usages) == 1
            usage = usages[0]
        else:
            answer = json.loads(raw)
            texts = [choice["text"] for choice in answer["choices"]]
            assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
            usage = answer["usage"]
        assert texts == want
        assert usage["prompt_tokens"] == 2
        assert usage["completion_tokens"] == 20
        assert usage["total_tokens"] == 22
        sent = (await cluster.stats("prefill-0"))["bodies"]
        assert len({each["bootstrap_room"] for each in sent}) == 4
        assert all(each["n"] == 1 and isinstance(each["prompt"], str) for each in sent)


async def test_generate_batches_return_lists() -> None:
    async with Cluster() as cluster:
        body = {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 3}}
        _, raw = await post(cluster, "/generate", body)
        assert [each["text"] for each in json.loads(raw)] == [expected(p, 3) for p in "ab"]
        _, raw = await post(cluster, "/generate", {**body, "stream": True})
        last = {event["index"]: event["text"] for event in events(raw)}
        assert last == {0: expected("a", 3), 1: expected("b", 3)}


@pytest.mark.parametrize("alternatives", [1, 0])
@pytest.mark.parametrize("stream", [True, False])
async def test_prompt_logprobs_come_from_the_prefill(stream: bool, alternatives: int) -> None:
    async with Cluster(worker_args=["--transfer-ms", "30"]) as cluster:
        body = {"text": "hello", "return_logprob": True, "logprob_start_len": 0,
                "sampling_params": {"max_new_tokens": 3}, "stream": stream}  # fmt: skip
        _, raw = await post(cluster, "/generate", body)
        answers = events(raw) if stream else [json.loads(raw)]
        for answer in answers:
            assert answer["meta_info"]["input_token_logprobs"] == [[-0.5, 1, None]]
        body = {"prompt": "hello", "max_tokens": 3, "echo": True, "stream": stream,
                "logprobs": alternatives}  # fmt: skip
        _, raw = await post(cluster, "/v1/completions", body)
        answers = events(raw) if stream else [json.loads(raw)]
        parts = [each["choices"][0]["logprobs"] for each in answers]
        tokens = [t for part in parts if part for t in part["tokens"]]
        seed = seed_of("hello")
        assert tokens == ["p", *(word(seed, i) for i in range(3))]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/chat/completions", b"{not json", 400, b"JSON decode error"),
        ("/generate", b"[1, 2]", 400, b"valid dictionary"),
        ("/v1/completions", b'{"prompt": "a", "n": 0}', 400, b"at least 1"),
        ("/v1/completions", b'{"prompt": "a", "best_of": 3}', 400, b"best_of"),
        ("/v1/completions", b'{"prompt": "a", "fail_status": 422}', 422, b"as asked"),
        ("/v1/completions", b'{"prompt": "a", "fail_status": 500}', 500, b"as asked"),
    ],
)
async def test_bad_requests_get_an_answer(
    path: str, body: bytes, status: int, words: bytes
) -> None:
    async with Cluster(config={"max_retries": 1}) as cluster:
        got, raw = await post(cluster, path, body)
        assert got == status
        assert words in raw
        json.loads(raw)
        await cluster.until(idle)


async def test_ids_never_reach_the_client() -> None:
    async with Cluster() as cluster:
        path = "/v1/completions"
        _, raw = await post(cluster, path, bodies(30)[path])
        assert b": %d\n" % token_id(seed_of("hello"), 0) not in raw
