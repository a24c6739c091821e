"""The demo's own logic: which prompts, what it shows, and that a bad answer is an error."""

import asyncio
import inspect
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.bench.pages import compared
from toolkit.bench.compare import Arm
from toolkit.bench.verdict import findings
from toolkit.cli.demo import demo as command
from toolkit.demo.ask import DemoAnswer, DemoError, ask
from toolkit.demo.chosen import SHOWN, choose, shortened
from toolkit.demo.run import ARMS, Size, last_lines
from toolkit.embedded import load_prompts
from toolkit.policies import make_policy


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


def _ask(stub: Stub, shown: list[str]) -> DemoAnswer:
    async def go() -> DemoAnswer:
        app = web.Application()
        app.router.add_get("/workers", stub.workers)
        app.router.add_get("/v1/models", stub.models)
        app.router.add_post("/v1/chat/completions", stub.chat)
        async with TestServer(app) as up, aiohttp.ClientSession() as session:
            url = str(up.make_url("")).rstrip("/")
            return await ask(session, url, "hello", 8, shown.append)

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


def test_the_last_lines_say_what_was_shown_and_name_the_page() -> None:
    report = compared()
    lines = last_lines(report, "~/demo.html", "~/runs/1")
    assert len(lines) <= 10 and max(map(len, lines)) <= 80
    assert report.comparison is not None
    gain = next(f for f in findings(report.comparison) if f.metric.key == "distinct_experts")
    assert gain.word == "gain" and f"  {gain.sentence}" in lines
    assert "The page: ~/demo.html" in lines
    assert "10 paired rounds" in lines[0]


def test_it_compares_few_policies_in_enough_rounds() -> None:
    assert 2 <= len(ARMS) <= 3 and Size().rounds >= 8
    for name in ARMS:
        assert make_policy(Arm.parse(name).body["decode"]) is not None


@pytest.mark.parametrize(
    ("option", "says"),
    [(("--rounds", "1"), "--rounds"), (("--requests", "0"), "--requests")],
)
def test_wrong_options_are_refused_before_anything_starts(
    option: tuple[str, str], says: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", "demo", *option], capture_output=True, text=True
    )
    assert done.returncode == 2 and says in done.stderr and "Start" not in done.stdout


def test_a_page_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", "demo", "--page", str(tmp_path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "cannot write the page" in done.stderr
    assert "Start" not in done.stdout


def test_the_commands_defaults_are_the_demos() -> None:
    given = {name: p.default for name, p in inspect.signature(command).parameters.items()}
    assert {name: given[name] for name in asdict(Size())} == asdict(Size())
