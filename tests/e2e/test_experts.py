"""What workers say tokens were routed to, against transformers' own router, token by token."""

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.e2e import calls
from tests.e2e.reference import Reference
from toolkit.embedded import load_prompts, model_path
from toolkit.launch.running import Running
from toolkit.profile.measure import new_session
from toolkit.profile.tap import PhaseRows, Tap

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKENS = 24


def body(rid: str, ids: list[int]) -> dict[str, Any]:
    return {**calls.greedy(ids, TOKENS, stream=False), "rid": rid}


async def captured(
    deployment: Running, prompts: list[list[int]], together: int
) -> list[tuple[list[int], dict[str, PhaseRows]]]:
    """(output ids, rows by phase) of each prompt, `together` in flight."""
    urls = [worker.url for worker in deployment.workers]
    found = []
    async with new_session() as http, Tap(http, urls) as tap:

        async def one(number: int) -> tuple[list[int], dict[str, PhaseRows]]:
            rid = f"experts-{together}-{number}"
            url = deployment.router_url + "/generate"
            asked = {"x-toolkit-capture": "1"}
            async with http.post(url, json=body(rid, prompts[number]), headers=asked) as response:
                assert response.status == 200, await response.text()
                answer = await response.json()
            return answer["output_ids"], await tap.request(rid, ("prefill", "decode"), 30)

        for start in range(0, len(prompts), together):
            numbers = range(start, min(start + together, len(prompts)))
            found += await asyncio.gather(*map(one, numbers))
    return found


def check(
    reference: Reference, prompt: list[int], output: list[int], rows: dict[str, PhaseRows]
) -> None:
    # The last output token was never run.
    expected = reference.experts([*prompt, *output[:-1]])
    for phase, wanted in (
        ("prefill", expected[: len(prompt)]),
        ("decode", expected[len(prompt) :]),
    ):
        got = np.sort(rows[phase].ids, axis=2)
        assert got.shape == wanted.shape, phase
        assert (got == wanted).all(), f"{phase}: {(got != wanted).any(axis=2).sum()} sets differ"


def token_ids() -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    texts = [prompt.text for prompt in load_prompts()]
    return [tokenizer.encode(text).ids for text in texts[:: len(texts) // 20]][:20]


@pytest.mark.parametrize("together", [1, 5], ids=["alone", "concurrent"])
def test_experts_are_those_of_transformers(
    deployment: Running, reference: Reference, together: int
) -> None:
    prompts = token_ids()
    answers = calls.run(captured(deployment, prompts, together))
    assert len(answers) == 20
    for prompt, (output, rows) in zip(prompts, answers, strict=True):
        check(reference, prompt, output, rows)


def test_experts_of_a_prefix_hit_are_whole(deployment: Running, reference: Reference) -> None:
    head = calls.prompt("experts-prefix", 120)
    prompts = [head + calls.prompt(f"experts-tail-{n}", 30) for n in range(4)] + [head[:80]]
    answers = calls.run(captured(deployment, prompts, 1))
    for prompt, (output, rows) in zip(prompts, answers, strict=True):
        check(reference, prompt, output, rows)
    assert [rows["prefill"].cached_tokens >= 79 for _, rows in answers] == [False] + [True] * 4


def test_a_chunked_prompt_is_whole(deployment: Running, reference: Reference) -> None:
    prompts = [calls.prompt(f"experts-long-{n}", 1500) for n in range(2)]
    for prompt, (output, rows) in zip(
        prompts, calls.run(captured(deployment, prompts, 2)), strict=True
    ):
        check(reference, prompt, output, rows)


async def test_live_sampling_picks_the_same_requests_on_both_sides(deployment: Running) -> None:
    urls = [worker.url for worker in deployment.workers]
    async with new_session() as http, Tap(http, urls, share=0.5) as tap:
        for number in range(24):
            request = {**calls.greedy(calls.prompt(f"live-{number}", 20), 4, False)}
            request["rid"] = f"live-{number}"
            async with http.post(deployment.router_url + "/generate", json=request) as answer:
                assert answer.status == 200
        await asyncio.sleep(0.5)
        heard = tap.heard.experts
    assert 4 <= len(heard) <= 20
    assert all(set(phases) == {"prefill", "decode"} for phases in heard.values())


async def test_nothing_is_sent_for_those_who_did_not_ask(deployment: Running) -> None:
    urls = [worker.url for worker in deployment.workers]
    async with new_session() as http, Tap(http, urls) as tap:
        request = calls.greedy(calls.prompt("unasked", 20), 4, False)
        async with http.post(deployment.router_url + "/generate", json=request) as answer:
            assert answer.status == 200
        await asyncio.sleep(0.5)
    assert tap.heard.experts == {}
    assert tap.heard.transfers, "the KV transfer of the request itself is always reported"
