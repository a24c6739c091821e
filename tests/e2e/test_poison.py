"""What ends a plain SGLang server ends nobody here: straight at real workers, and at the router."""

import asyncio
import json
import random
from typing import Any

import aiohttp
import pytest

from tests.e2e import calls, worker_key
from tests.e2e.worker_key import with_ticket
from tests.told import told
from toolkit.contract.ticket import sign
from toolkit.launch.running import Running

pytestmark = pytest.mark.e2e

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"
WAIT_LIMIT_S = 30.0
"""For one answer: they come within milliseconds where nobody is stuck."""


def native(sampling: dict[str, Any] | None = None, **more: Any) -> tuple[str, dict[str, Any]]:
    return NATIVE, {
        "text": "hi",
        "sampling_params": {"max_new_tokens": 3} | (sampling or {}),
    } | more


def text(**more: Any) -> tuple[str, dict[str, Any]]:
    return TEXT, {"model": "embedded", "prompt": "hi", "max_tokens": 3} | more


def chat(**more: Any) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": "hi"}]
    return CHAT, {"model": "embedded", "messages": messages, "max_tokens": 3} | more


# Each of these ended the scheduler of a plain SGLang 0.5.21, or was answered with 500.
POISON: list[tuple[str, dict[str, Any]]] = [
    native({"logit_bias": ""}),
    native({"logit_bias": []}),
    native({"logit_bias": {"5": 10**400}}),
    native({"top_k": 10**30}),
    native({"regex": [[]]}),
    native({"temperature": 1e308}),
    native({"stop_regex": "\\"}),
    native({"stop_token_ids": [2**40], "min_new_tokens": 1}),
    native({"skip_special_tokens": "x"}),
    native({"stop": 5}),
    native({"custom_params": [1]}),
    native(positional_embed_overrides={"0": 1e30}),
    native(positional_embed_overrides=[]),
    native(lora_id=[""]),
    native(session_params={"99999999": 1}),
    native(return_logprob=True, top_logprobs_num=100000),
    native(input_embeds=[[1.0]], text=None),
    native(extra_key="\ud800"),
    (NATIVE, {"text": "hi", "sampling_params": []}),
    text(logprobs=100000),
    text(stop_regex="(((", stream=True),
    chat(response_format=True),
    chat(stop_regex="\\"),
    chat(messages=[-0.5]),
    chat(messages=[{"role": "user", "content": [1.5]}]),
    chat(tools=[0.5]),
]
# The router takes batches apart, so there each part has a value of its own.
POISON_BATCH = (NATIVE, {"text": ["hi", "ho"], "return_sampling_mask": [0]})
FORGED: list[Any] = [["x"], 7, [2**70], {"resume": "1", "capture": True, "signature": "0" * 64}]


async def _post(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str]
) -> tuple[int, str]:
    data = json.dumps(body).encode()
    headers = headers | {"Content-Type": "application/json"}
    limit = aiohttp.ClientTimeout(total=WAIT_LIMIT_S)
    try:
        async with http.post(url, data=data, headers=headers, timeout=limit) as response:
            return told(response.status, await response.read())
    except TimeoutError:
        return 0, f"no answer within {WAIT_LIMIT_S:.0f} s"
    except aiohttp.ClientError as error:
        return 0, repr(error)


def _pair(deployment: Running) -> dict[str, Any]:
    """Fields with which a worker of a pair takes a request."""
    workers = json.loads((deployment.run_dir / "router.json").read_text())["workers"]
    prefill = next(worker for worker in workers if worker["role"] == "prefill")
    return {
        "bootstrap_host": prefill["bootstrap_host"],
        "bootstrap_port": prefill["bootstrap_port"],
        "bootstrap_room": random.getrandbits(62),
        "rid": f"poison-{random.getrandbits(60):x}",
    }


def _answers(urls: list[str], bodies: list[Any], headers: dict[str, str], more: Any) -> list[Any]:
    async def main() -> list[Any]:
        async with calls.session() as http:
            return await asyncio.gather(
                *(
                    _post(http, url + path, body | more(), headers)
                    for path, body in bodies
                    for url in urls
                )
            )

    return calls.run(main())


# Each of these holds Python's `re`, and with it a scheduler, for minutes and more.
PATTERNS = [
    ".?" * 100 + "\x01",
    ".{0,9}" * 8 + "\x01",
    "[^\x01]*[^\x01]*\x01",
    "(a|[^b])*(a|[^b])*\x01",
]
TOO_MUCH = ["(?:a?){1000}\x01", "(a*)*\\1\x01", "(?=(.*)*)\x01"]
"""And these are refused."""


def _pids(deployment: Running) -> list[int | None]:
    return [worker.pid for worker in deployment.workers]


def _still_serves(deployment: Running) -> bool:
    async def main() -> str:
        async with calls.session() as http:
            body = calls.greedy(calls.prompt("poison", 20), 4, stream=False)
            return (await calls.generate(http, deployment.router_url, body)).error

    return bool(calls.run(main()) == "")


def test_workers_refuse_poison_and_live(deployment: Running) -> None:
    pids = _pids(deployment)
    urls = [worker.url for worker in deployment.workers]
    headers = worker_key.headers(deployment)
    bodies = [*POISON, POISON_BATCH]
    answers = _answers(urls, bodies, headers, lambda: _pair(deployment))
    sent = [body for _, body in bodies for _ in urls]
    assert [(b, a) for b, a in zip(sent, answers, strict=True) if a[0] != 400] == []
    assert _pids(deployment) == pids
    assert _still_serves(deployment)


def test_the_router_answers_poison_with_400(deployment: Running) -> None:
    pids = _pids(deployment)
    answers = _answers([deployment.router_url], POISON, {}, dict)
    wrong = []
    for (_, body), answer in zip(POISON, answers, strict=True):
        # Validation drops these two, as the answer is the same without them.
        dropped = body.get("positional_embed_overrides") == [] or "lora_id" in body
        if answer[0] != (200 if dropped else 400):
            wrong.append((body, answer))
    assert wrong == []
    assert _pids(deployment) == pids
    assert _still_serves(deployment)


def test_workers_refuse_what_the_router_did_not_sign(deployment: Running) -> None:
    pids = _pids(deployment)
    urls = [worker.url for worker in deployment.workers]
    headers = worker_key.headers(deployment)
    key = worker_key.of(deployment)
    tickets = [
        *FORGED,
        sign("another key", "rid", resume=[1]),
        sign(key, "another rid", resume=[1]),
    ]
    bodies = [
        (path, with_ticket(body, ticket))
        for ticket in tickets
        for path, body in (native(), text(), chat())
    ]
    answers = _answers(urls, bodies, headers, lambda: _pair(deployment))
    assert [answer for answer in answers if answer[0] != 400] == []
    assert _pids(deployment) == pids


def test_workers_refuse_signed_tokens_that_they_cannot_have(deployment: Running) -> None:
    pids = _pids(deployment)
    urls = [worker.url for worker in deployment.workers]
    headers, key = worker_key.headers(deployment), worker_key.of(deployment)

    async def main() -> list[Any]:
        async with calls.session() as http:
            found = []
            for ids in ([2**31 - 1], [9] * 20000):
                for url in urls:
                    pair = _pair(deployment)
                    path, body = native()
                    body = with_ticket(body, sign(key, pair["rid"], resume=ids)) | pair
                    found.append(await _post(http, url + path, body, headers))
            return found

    assert [status for status, _ in calls.run(main())] == [400] * 2 * len(urls)
    assert _pids(deployment) == pids
    assert _still_serves(deployment)


def test_a_grammar_that_allows_nothing_is_a_400(deployment: Running) -> None:
    bodies = [native({"ebnf": "root ::= root"})] * 2  # the second finds the first's in the cache
    assert [status for status, _ in _answers([deployment.router_url], bodies, {}, dict)] == [
        400,
        400,
    ]


@pytest.mark.parametrize("value", [["x"], 7, [2**70], [None], [99999999], [-1]])
def test_a_client_s_own_resume_does_nothing(deployment: Running, value: Any) -> None:
    pids = _pids(deployment)
    body = native({"custom_params": {"toolkit_resume": value, "toolkit_capture": True}})
    (answer,) = _answers([deployment.router_url], [body], {}, dict)
    assert answer[0] in (200, 400)
    assert _pids(deployment) == pids


async def test_hostile_patterns_hold_up_nobody(deployment: Running) -> None:
    """At the router and straight at workers, while streams run on both decode workers."""
    pids = _pids(deployment)
    tokens, longer = 48, 256
    counts = [0] * 4
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    hostile = [native(sampling | {"stop_regex": pattern}) for pattern in (*PATTERNS, PATTERNS)]
    refused = [native({"stop_regex": pattern}) for pattern in TOO_MUCH]
    headers = worker_key.headers(deployment)
    roles = {
        role: [each.url for each in deployment.workers if each.role == role]
        for role in ("prefill", "decode")
    }
    async with calls.session() as http:

        async def pair(body: dict[str, Any], decode: str) -> list[tuple[int, str]]:
            more = _pair(deployment)
            urls = (*roles["prefill"], decode)
            return await asyncio.gather(
                *(_post(http, url + NATIVE, body | more, headers) for url in urls)
            )

        def count(index: int, number: int) -> None:
            counts[index] = number

        bodies = [calls.greedy(calls.prompt(n, 20), longer, stream=True) for n in range(4)]
        running = asyncio.ensure_future(
            calls.all_of(deployment.router_url, bodies, len(bodies), count)
        )
        while not all(counts):
            await asyncio.sleep(0.01)
        begun = list(counts)
        passed = await asyncio.gather(
            *(_post(http, deployment.router_url + path, body, {}) for path, body in hostile),
            *(pair(body, url) for _, body in hostile for url in roles["decode"]),
        )
        stopped = await asyncio.gather(
            *(
                _post(http, url + path, body | _pair(deployment), headers)
                for path, body in refused
                for url in (*roles["prefill"], *roles["decode"])
            ),
            *(_post(http, deployment.router_url + path, body, {}) for path, body in refused),
        )
        assert max(begun) < longer  # or nobody was there to be held up
        streams = await running
    assert [(len(each.ids), each.error) for each in streams] == [(longer, "")] * len(streams)
    answers = [each for found in passed for each in (found if isinstance(found, list) else [found])]
    assert [each for each in answers if each != (200, "")] == []
    assert [each for each in stopped if each[0] != 400 or "stop_regex" not in each[1]] == []
    assert _pids(deployment) == pids


@pytest.mark.parametrize("pattern", ["[a-z]", "(?i)[^0-9]+", r"(\s|\S)*"])
async def test_a_pattern_stops_an_answer(deployment: Running, pattern: str) -> None:
    _, body = native({"max_new_tokens": 200, "ignore_eos": True, "stop_regex": pattern})
    async with calls.session() as http:
        answer = await http.post(deployment.router_url + NATIVE, json=body)
        meta = (await answer.json())["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": pattern}
    assert meta["completion_tokens"] < 200
