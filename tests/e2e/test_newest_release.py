"""A smoke test on the newest supported release of SGLang, where another one is installed.

One prefill worker and a decode server of two DP-attention ranks: late binding, signatures, our
policy over the DP ranks, answers equal to the model's own.
"""

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from tests.e2e.workers import state
from toolkit.contract.events import Hello, PrefillDone, decode
from toolkit.contract.paths import EVENTS
from toolkit.launch.running import Running
from toolkit.setup import layout, releases

NEWEST = releases.PROVEN[-1]
TOKENS, COUNT = 12, 20

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.touched("newest-release"),
    pytest.mark.skipif(version("sglang") == NEWEST, reason="all other tests run on it"),
]


def described() -> dict[str, Any]:
    role = {"kv_tokens": 8192, "max_running": 16}
    ranks = {"tp": 2, "dp": 2, "dp_attention": True}
    return {
        "name": "newest", "device": "cpu", "model": "embedded", "mode": "pd", "prefill": role,
        "decode": {**role, **ranks}, "router": {"profile": "embedded", "decode_policy": "br0"},
    }  # fmt: skip


async def heard(up: Running, bodies: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """The answers, and what the prefill worker said meanwhile."""
    (prefill,) = [worker for worker in up.workers if worker.role == "prefill"]
    news: list[Any] = []
    async with calls.session() as http, http.get(prefill.url + EVENTS) as stream:

        async def listen() -> None:
            async for line in stream.content:
                news.append(decode(line))

        listening = asyncio.create_task(listen())
        answers = await calls.all_of(up.router_url, bodies, 8)
        await asyncio.sleep(0.5)
        listening.cancel()
    return answers, news


def test_requests_on_the_newest_release(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = releases.ensure(layout.here(), NEWEST)
    for name, value in releases.environment(place).items():
        monkeypatch.setenv(name, value)
    prompts = [calls.prompt(f"newest-{n}", 20 + 9 * n) for n in range(COUNT)]
    bodies = [calls.greedy(prompt, TOKENS, stream=n % 2 == 0) for n, prompt in enumerate(prompts)]
    with deployed(described(), tmp_path) as up:
        answers, news = calls.run(heard(up, bodies))
        after = calls.run(state(up.router_url))
    assert [each.error for each in answers] == [""] * COUNT
    said = [each.ids for each in answers]
    assert said == reference.greedy_each(prompts, TOKENS, said)
    hello = next(each for each in news if isinstance(each, Hello))
    assert hello.sglang == NEWEST
    done = [each for each in news if isinstance(each, PrefillDone)]
    assert len(done) >= COUNT and all(each.signature is not None for each in done)
    served = {
        row["dp_rank"]: row["completed"] for row in after["workers"] if row["role"] == "decode"
    }
    assert served.keys() == {0, 1} and min(served.values()) > 0, served
