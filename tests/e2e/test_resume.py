"""The `resume` patch on real workers: a generation cut anywhere goes on as if it never stopped.

The router is left out on purpose: these requests go straight to a prefill and a decode worker, so
that what fails here is the patch and nothing else.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from tests.e2e import calls, worker_key
from tests.e2e.worker_key import with_ticket
from toolkit.contract.ticket import sign
from toolkit.embedded import load_prompts
from toolkit.launch.running import Running

pytestmark = pytest.mark.e2e

TEXT = load_prompts("legal", "fr")[0].text
GREEDY = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
END = {"2": 100}  # the embedded model's end of text
SAMPLING: dict[str, dict[str, Any]] = {
    "plain": {},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 0.9},
    "repetition": {"repetition_penalty": 1.3},
    # It would end at once, and ends with its first token that may be the last.
    "minimum": {"min_new_tokens": 16, "ignore_eos": False, "logit_bias": END},
    "grammar": {"regex": "(ab|cd|ef){10,40}", "ignore_eos": False},
}


class Pair:
    """The deployment's prefill worker and its first decode worker."""

    def __init__(self, deployment: Running) -> None:
        workers = json.loads((deployment.run_dir / "router.json").read_text())["workers"]
        self.prefill = next(worker for worker in workers if worker["role"] == "prefill")
        self.decode = next(worker for worker in workers if worker["role"] == "decode")
        self.key = worker_key.of(deployment)

    async def stream(
        self, path: str, body: dict[str, Any], resume: Sequence[int] = ()
    ) -> tuple[list[int], list[Any]]:
        """Token ids (from the comment lines) and parsed events of one request."""
        rid = f"resume-{random.getrandbits(60):x}"
        body = with_ticket(body, sign(self.key, rid, resume=resume)) | {
            "rid": rid,
            "bootstrap_host": self.prefill["bootstrap_host"],
            "bootstrap_port": self.prefill["bootstrap_port"],
            "bootstrap_room": random.getrandbits(62),
        }
        async with calls.session() as http:
            prefill, answer = await asyncio.gather(
                self._post(http, self.prefill["url"] + path, body),
                self._post(http, self.decode["url"] + path, body | {"stream": True}),
            )
        assert '"error"' not in prefill
        lines = [line for line in answer.splitlines() if line]
        ids = [int(i) for line in lines if line.startswith(": ") for i in line[2:].split()]
        return ids, [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    @property
    def _headers(self) -> dict[str, str]:
        return {"x-toolkit-ids": "1", "Authorization": f"Bearer {self.key}"}

    async def _post(self, http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> str:
        async with http.post(url, json=body, headers=self._headers) as response:
            answer = await response.text()
            assert response.status == 200, answer
            return answer


@pytest.fixture(scope="module")
def pair(deployment: Running) -> Pair:
    return Pair(deployment)


@pytest.mark.parametrize("kind", SAMPLING)
async def test_generate_goes_on_from_any_token(pair: Pair, kind: str) -> None:
    sampling = GREEDY | SAMPLING[kind]
    body = {"text": TEXT, "sampling_params": sampling}
    ids, events = await pair.stream("/generate", body)
    assert len(ids) == events[-1]["meta_info"]["completion_tokens"] > 8
    # All of them: what a decode worker owes that died before the end of one token's answer.
    all_of_them = events[-1]["meta_info"]["finish_reason"]["type"] == "length"
    for cut in (1, 7, len(ids) - 1, *([len(ids)] if all_of_them else [])):
        again, replayed = await pair.stream("/generate", body, resume=ids[:cut])
        assert again == ids, f"cut at {cut}"
        assert replayed[-1]["text"] == events[-1]["text"]
        for key in ("completion_tokens", "prompt_tokens", "finish_reason"):
            assert replayed[-1]["meta_info"][key] == events[-1]["meta_info"][key], key


async def test_what_penalties_count_hangs_on_nobody_else(pair: Pair) -> None:
    """Cut everywhere, several at a time: others come and go beside each of them."""
    penalties = {"frequency_penalty": 0.6, "presence_penalty": 0.4, "max_new_tokens": 60}
    body = {"text": "The lease", "sampling_params": GREEDY | penalties}
    ids, _ = await pair.stream("/generate", body)
    gate = asyncio.Semaphore(5)

    async def again(cut: int) -> list[int]:
        async with gate:
            return (await pair.stream("/generate", body, resume=ids[:cut]))[0]

    cuts = range(1, len(ids), 2)
    answers = await asyncio.gather(*map(again, cuts))
    assert [cut for cut, got in zip(cuts, answers, strict=True) if got != ids] == []


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_openai_streams_replay_their_text(pair: Pair, path: str) -> None:
    message = {"messages": [{"role": "user", "content": TEXT}]}
    prompt: dict[str, Any] = {"prompt": TEXT} if path == "/v1/completions" else message
    body = prompt | {"model": "any", "temperature": 0, "max_tokens": 24, "ignore_eos": True}
    body |= {"stream_options": {"include_usage": True}}

    def text(events: list[Any]) -> str:
        choices = [event["choices"][0] for event in events if event["choices"]]
        return "".join(
            c.get("text") or (c.get("delta") or {}).get("content") or "" for c in choices
        )

    prefilled = {"stream": True} | body
    ids, events = await pair.stream(path, prefilled)
    assert text(events)
    again, replayed = await pair.stream(path, prefilled, resume=ids[:9])
    assert again == ids
    assert text(replayed) == text(events)
    assert replayed[-1]["usage"] == events[-1]["usage"]
