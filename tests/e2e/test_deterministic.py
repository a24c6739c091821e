"""What a seed means, and that a request that moves or is resumed says what it would have said.

A stream that changes after a move may have changed because the engine's sums depend on the batch,
or because we put something wrong at its new place: a position, a penalty, a row of KV. Workers with
`--enable-deterministic-inference` leave only the second: with that flag a token's log probabilities
are the same to the bit in every batch, so whatever changes there is our fault. The last two tests
show that without the flag SGLang by itself changes them.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.e2e import calls, worker_key
from tests.e2e.deployments import deployed
from tests.e2e.moving import migrate
from tests.e2e.worker_key import with_ticket
from tests.e2e.worker_process import worker
from tests.sizes import size
from toolkit.contract.ticket import sign
from toolkit.embedded import load_prompts
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("determinism")]

FLAG = "enable-deterministic-inference"
TEXTS = [prompt.text for prompt in load_prompts()[::23]][:6]
TOKENS = 40
LONG = 150
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A prefill and two decode workers with the flag."""
    role = {"kv_tokens": 16384, "max_running": 16, "args": {FLAG: True}}
    described = {
        "name": "exact",
        "device": "cpu",
        "model": "embedded",
        "prefill": {"replicas": 1, **role},
        "decode": {"replicas": 2, **role},
        "router": {"first_token": "prefill"},
    }
    with deployed(described, tmp_path_factory.mktemp("exact")) as up:
        yield up


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SGLang by itself, with the flag."""
    log = tmp_path_factory.mktemp("alone") / "worker.log"
    flags = (f"--{FLAG}", "--served-model-name", "embedded", "--sleep-on-idle")
    with worker(*flags, log=log) as url:
        yield url


def generate(text: str, **sampling: Any) -> tuple[str, dict[str, Any]]:
    own = {"temperature": 1.0, "max_new_tokens": TOKENS, "ignore_eos": True, **sampling}
    return "/generate", {"text": text, "sampling_params": own}


def openai(path: str, text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    prompt: dict[str, Any] = {"prompt": text}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": text}]}
    own = {"model": "embedded", "temperature": 1.0, "max_tokens": TOKENS, "ignore_eos": True}
    return path, {**prompt, **own, **more}


def seeded(seed: int) -> list[tuple[str, dict[str, Any]]]:
    return [
        generate(TEXTS[0], sampling_seed=seed),
        generate(TEXTS[1], sampling_seed=seed, top_p=0.9, top_k=40),
        generate(TEXTS[2], sampling_seed=seed, n=2),
        openai(COMPLETIONS, TEXTS[3], seed=seed),
        openai(CHAT, TEXTS[4], seed=seed, temperature=0.7),
        openai(CHAT, TEXTS[5], seed=seed, n=2),
    ]


async def said(http: aiohttp.ClientSession, url: str, kind: tuple[str, dict[str, Any]]) -> Any:
    """What an answer says, by choice; it streams where the body says so."""
    path, body = kind
    async with http.post(url + path, json=body) as response:
        assert response.status == 200, await response.text()
        if not body.get("stream"):
            return _texts(await response.json())
        texts: dict[int, str] = {}
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "text" in event:
                    texts[event.get("index", 0)] = event["text"]
                for choice in event.get("choices") or ():
                    new = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                    texts[choice["index"]] = texts.get(choice["index"], "") + new
        return [texts[index] for index in sorted(texts)]


def _texts(answer: Any) -> list[str]:
    if isinstance(answer, list):
        return [each["text"] for each in answer]
    if "choices" in answer:
        return [c.get("text") or c["message"]["content"] for c in answer["choices"]]
    return [answer["text"]]


async def all_said(url: str, kinds: list[tuple[str, dict[str, Any]]], at_a_time: int) -> list[Any]:
    gate = asyncio.Semaphore(at_a_time)
    async with calls.session() as http:

        async def one(kind: tuple[str, dict[str, Any]]) -> Any:
            async with gate:
                return await said(http, url, kind)

        return await asyncio.gather(*map(one, kinds))


def test_a_seed_says_what_sglang_alone_says(exact: Running, alone: str) -> None:
    """All at once and each several times, beside others that are greedy; and as streams."""
    times = size(change=2, whole=3)
    kinds = [kind for seed in (11, 12) for kind in seeded(seed)]
    streams = [(path, {**body, "stream": True}) for path, body in kinds if "n" not in body]

    async def main() -> None:
        expected = await all_said(alone, kinds, at_a_time=1)
        half = len(kinds) // 2
        for first, second in zip(expected[:half], expected[half:], strict=True):
            assert first != second, "two seeds must say two things"
        by_body = {json.dumps(body): said for (_, body), said in zip(kinds, expected, strict=True)}
        again = [kind for kind in kinds for _ in range(times)]
        greedy = [generate(text, temperature=0, max_new_tokens=LONG) for text in TEXTS]
        beside = asyncio.ensure_future(all_said(exact.router_url, greedy, at_a_time=2))
        got = await all_said(exact.router_url, again, at_a_time=9)
        await beside
        for (path, body), found in zip(again, got, strict=True):
            assert found == by_body[json.dumps(body)], (path, body)
        got = await all_said(exact.router_url, streams, at_a_time=6)
        for (path, body), found in zip(streams, got, strict=True):
            own = {name: value for name, value in body.items() if name != "stream"}
            assert found == by_body[json.dumps(own)], (path, "as a stream", body)

    calls.run(main())


def test_what_would_end_a_worker_with_the_flag_is_refused(exact: Running) -> None:
    """SGLang's sampler asserts that nobody asks for `min_p` there."""
    _, body = generate(TEXTS[0], min_p=0.1)

    async def main() -> None:
        url = exact.router_url + "/generate"
        async with calls.session() as http, http.post(url, json=body) as response:
            assert response.status == 400
            assert "min_p is not possible" in await response.text()

    calls.run(main())
    assert [worker.restarts for worker in exact.workers] == [0, 0, 0]


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {},  # without a seed of its own: with the flag SGLang gives it one
    "penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.4},
}


# Streams of every kind move by "auto" for a change (test_moves.py).
@pytest.mark.parametrize("by", [pytest.param("auto", marks=pytest.mark.full), "replay"])
def test_with_the_flag_a_stream_that_moves_never_changes(exact: Running, by: str) -> None:
    """Others come and go beside it, and it moves to and fro."""
    kinds = {
        name: ("/generate", {**generate(text, max_new_tokens=LONG, **sampling)[1], "stream": True})
        for text, (name, sampling) in zip(TEXTS, KINDS.items(), strict=False)
    }

    many = size(change=2, whole=4)

    async def main() -> None:
        await calls.switch(exact.router_url, moves=by)
        expected = await all_said(exact.router_url, list(kinds.values()), at_a_time=1)
        async with calls.session() as http:

            async def moved(name: str) -> tuple[Any, int]:
                path, body = kinds[name]
                own = (path, {**body, "rid": f"exact-{by}-{name}"})
                stream = asyncio.ensure_future(said(http, exact.router_url, own))
                count = 0
                while not stream.done():
                    told = await migrate(http, exact, rid=own[1]["rid"])
                    count += sum(each["outcome"] == "moved" for each in told)
                    await asyncio.sleep(0.05)
                return await stream, count

            beside = asyncio.ensure_future(
                all_said(exact.router_url, [generate(text) for text in TEXTS] * many, at_a_time=5)
            )
            got = await asyncio.gather(*map(moved, kinds))
            await beside
        print("moves:", {name: count for name, (_, count) in zip(kinds, got, strict=True)})
        for name, before, (after, count) in zip(kinds, expected, got, strict=True):
            assert after == before, name
            assert count, name

    calls.run(main())


class Pair:
    """The prefill worker and the first decode worker of a deployment, asked past the router."""

    def __init__(self, deployment: Running) -> None:
        workers = json.loads((deployment.run_dir / "router.json").read_text())["workers"]
        self.prefill = next(each for each in workers if each["role"] == "prefill")
        self.decode = next(each for each in workers if each["role"] == "decode")
        self.key = worker_key.of(deployment)

    async def answer(self, body: dict[str, Any], resume: tuple[int, ...] = ()) -> dict[str, Any]:
        rid = f"exact-{random.getrandbits(60):x}"
        body = with_ticket(body, sign(self.key, rid, resume=resume)) | {
            "rid": rid,
            "bootstrap_host": self.prefill["bootstrap_host"],
            "bootstrap_port": self.prefill["bootstrap_port"],
            "bootstrap_room": random.getrandbits(62),
        }
        headers = {"Authorization": f"Bearer {self.key}"}
        async with calls.session() as http:

            async def post(url: str) -> dict[str, Any]:
                async with http.post(url + "/generate", json=body, headers=headers) as response:
                    assert response.status == 200, await response.text()
                    return dict(await response.json())

            both = await asyncio.gather(post(self.prefill["url"]), post(self.decode["url"]))
        return both[1]


def bits(answer: dict[str, Any], last: int) -> list[tuple[int, float]]:
    """Ids of the last tokens and their log probabilities, which JSON keeps to the bit."""
    return [(token, value) for value, token, _ in answer["meta_info"]["output_token_logprobs"]][
        -last:
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_flag_a_resumed_request_is_the_same_to_the_bit(exact: Running, kind: str) -> None:
    """Cut anywhere, its KV computed anew by the kernels of prompts, by itself and beside others."""
    pair = Pair(exact)
    _, body = generate(TEXTS[3], **KINDS[kind])
    body |= {"return_logprob": True}

    async def main() -> None:
        whole = await pair.answer(body)
        ids = whole["output_ids"]
        assert len(ids) == TOKENS
        cuts = (1, 7, 20, TOKENS - 2)
        for beside in (0, 3):
            others = [asyncio.ensure_future(pair.answer(generate(t)[1])) for t in TEXTS[:beside]]
            answers = [await pair.answer(body, resume=tuple(ids[:cut])) for cut in cuts]
            await asyncio.gather(*others)
            for cut, answer in zip(cuts, answers, strict=True):
                left = TOKENS - cut
                assert answer["output_ids"] == ids, (cut, beside)
                assert bits(answer, left) == bits(whole, left), (cut, beside)

    calls.run(main())


def test_without_the_flag_a_seed_means_nothing_to_sglang_either(
    deployment: Running, plain_server: str
) -> None:
    _, body = generate(TEXTS[0], sampling_seed=5)
    _, same = openai(COMPLETIONS, TEXTS[0], seed=5)

    async def main() -> None:
        for url in (plain_server, deployment.router_url):
            for kind in (("/generate", body), (COMPLETIONS, same)):
                got = await all_said(url, [kind] * 4, at_a_time=1)
                assert len({text for (text,) in got}) > 1, (url, kind)

    calls.run(main())


def test_without_the_flag_sglang_alone_has_other_bits_in_another_batch(plain_server: str) -> None:
    """That is why a stream can change: beside others, and where the KV of what it has said was
    computed again as a prompt's."""
    _, body = generate(TEXTS[3], temperature=0)
    body |= {"return_logprob": True, "logprob_start_len": 0}
    url = plain_server + "/generate"

    async def main() -> None:
        async with calls.session() as http:

            async def post(body: dict[str, Any]) -> dict[str, Any]:
                async with http.post(url, json=body) as response:
                    return dict(await response.json())

            whole = await post(body)
            others = [generate(text, temperature=0)[1] for text in TEXTS[:3]]
            beside, *_ = await asyncio.gather(post(body), *map(post, others))
            prompt = [token for _, token, _ in whole["meta_info"]["input_token_logprobs"]]
            own = body["sampling_params"] | {"max_new_tokens": TOKENS - 10}
            again = await post(
                {
                    "input_ids": prompt + whole["output_ids"][:10],
                    "sampling_params": own,
                    "return_logprob": True,
                }
            )
        left = TOKENS - 10
        for other in (bits(beside, left), bits(again, left)):
            assert other != bits(whole, left)
            for (_, was), (_, now) in zip(bits(whole, left), other, strict=True):
                assert now == pytest.approx(was, abs=1e-3)

    calls.run(main())
