"""The demo's own logic: which prompts, what it shows, and that a bad answer is an error."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from toolkit.demo.ask import Answer, DemoError, ask
from toolkit.demo.chosen import SHOWN, choose, shortened
from toolkit.embedded import load_prompts


def test_one_prompt_of_each_wanted_domain_and_language() -> None:
    assert [(p.domain, p.language) for p in choose(load_prompts())] == list(SHOWN)


@given(st.text(max_size=600))
def test_a_shortened_prompt_is_one_short_line(text: str) -> None:
    short = shortened(text, 80)
    assert len(short) <= 80 and "\n" not in short


class Stub:
    """A router that answers `pieces` and counts the request on decode-1."""

    def __init__(self, pieces: list[str], status: int = 200) -> None:
        self.pieces, self.status, self.completed = pieces, status, 3

    async def workers(self, _: web.Request) -> web.Response:
        rows: list[dict[str, Any]] = [
            {"name": "prefill-0", "role": "prefill", "completed": self.completed},
            {"name": "decode-0", "role": "decode", "completed": 9},
            {"name": "decode-1", "role": "decode", "completed": self.completed},
        ]
        return web.json_response({"workers": rows})

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        assert (await request.json())["stream"] is True
        if self.status != 200:
            return web.json_response({"error": {"message": "no worker"}}, status=self.status)
        response = web.StreamResponse()
        await response.prepare(request)
        deltas: list[dict[str, str]] = [
            {"role": "assistant"},
            *({"content": p} for p in self.pieces),
        ]
        events: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
        events.append({"choices": [], "usage": {"completion_tokens": len(self.pieces)}})
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        self.completed += 1
        await response.write(b"data: [DONE]\n\n")
        return response


def _ask(stub: Stub, shown: list[str]) -> Answer:
    async def go() -> Answer:
        app = web.Application()
        app.router.add_get("/workers", stub.workers)
        app.router.add_get("/v1/models", stub.models)
        app.router.add_post("/v1/chat/completions", stub.chat)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with aiohttp.ClientSession() as session:
                return await ask(session, f"http://127.0.0.1:{port}", "hello", 8, shown.append)
        finally:
            await runner.cleanup()

    return asyncio.run(go())


def test_an_answer_is_shown_as_it_comes_and_names_its_workers() -> None:
    shown: list[str] = []
    answer = _ask(Stub(["a", "b", "c"]), shown)
    assert shown == ["a", "b", "c"] and answer.text == "abc" and answer.tokens == 3
    assert (answer.prefill, answer.decode) == ("prefill-0", "decode-1")
    assert 0 < answer.ttft <= answer.seconds


def test_an_answer_without_tokens_is_an_error() -> None:
    with pytest.raises(DemoError, match="no tokens"):
        _ask(Stub([]), [])


def test_an_error_status_is_an_error_with_its_message() -> None:
    with pytest.raises(DemoError, match=r"503.*no worker"):
        _ask(Stub([], status=503), [])
