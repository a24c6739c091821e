"""Large bodies, parsed elsewhere, are the same requests; a parser that dies is replaced."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from toolkit.router import parsing, splitting
from toolkit.router.budget import Budget, values, weight
from toolkit.router.errors import ApiError
from toolkit.router.packed import Packed, pack, segments
from toolkit.router.parsing import Parser
from toolkit.router.request import Wanted

MIB = 2**20
WANTED = Wanted(blocks=True, users=True, hashes=True)
LONG = "word é😀 " * 60_000
BODIES = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "user": "me"}),
    ("/v1/completions", {"prompt": LONG, "n": 3, "rid": "mine", "stream": True}),
    ("/v1/completions", {"prompt": [LONG, "b", LONG + "c"], "max_tokens": 3}),
    ("/v1/completions", {"prompt": [1, 2, 3] * 90_000}),
    ("/generate", {"text": [LONG, "b"], "sampling_params": {"n": 2, "max_new_tokens": 4},
                   "rid": ["x", "y"]}),
    ("/generate", {"input_ids": [[5, 6] * 90_000, [7]], "sampling_params": [{}, {"top_k": 1}]}),
]  # fmt: skip


def in_loop(coroutine) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


async def parse(parser: Parser, path: str, raw: bytes, budget: Budget | None = None):
    with (budget or Budget(512 * MIB)).open() as charge:
        chunks = [raw[start : start + 100_000] for start in range(0, len(raw), 100_000)]
        job = await parser.parse(path, chunks, charge, wanted=WANTED, limit=64)
        assert chunks == []
        return job, charge.bytes


def test_a_job_is_the_same_wherever_it_was_parsed():
    async def check() -> None:
        parser = Parser()
        for path, body in BODIES:
            raw = json.dumps(body).encode()
            job, charged = await parse(parser, path, raw)
            here = splitting.parse(path, raw, wanted=WANTED, limit=64)
            assert parser._process is not None
            assert len(job.singles) == len(here.singles)
            assert (job.merged, job.stream, job.per_prompt) == (
                here.merged, here.stream, here.per_prompt)  # fmt: skip
            for one, other in zip(job.singles, here.singles, strict=True):
                assert (one.view, one.index, one.first_sample, one.prompt_bytes) == (
                    other.view, other.index, other.first_sample, other.prompt_bytes)  # fmt: skip
                assert any(type(value) is Packed for value in one.body.values()) or len(raw) > 1000
                assert json.loads(b"".join(segments(one.body))) == other.body
            assert charged < 2 * len(raw) + MIB
            assert sum(len(b"".join(segments(one.body))) for one in job.singles) < charged * 4
        await parser.stop()

    in_loop(check())


def test_errors_come_back_as_they_are_and_a_dead_parser_is_replaced(monkeypatch):
    async def check() -> None:
        parser = Parser()
        big = ' "x": "' + "y" * MIB + '"'
        for text, words in (
            ("[" + "1," * MIB + "1]", "valid dictionary"),
            ('{"prompt": "a", "n": 0,' + big + "}", "at least 1"),
            ('{"prompt": ["a"' + ', "a"' * 99 + "]," + big + "}", "at most 64"),
            ('{"prompt": ' + "[" * MIB + "}", "JSON"),
        ):
            with pytest.raises(ApiError) as refused:
                await parse(parser, "/v1/completions", text.encode())
            assert refused.value.status == 400
            assert words in str(refused.value.body("completions"))
        dense = b'{"prompt": "a", "x": [' + b"[]," * (5 * MIB) + b"[]]}"
        with pytest.raises(ApiError) as refused:
            await parse(parser, "/v1/completions", dense)
        assert refused.value.status == 413
        assert parser._process is not None
        os.kill(parser._process.pid, signal.SIGKILL)
        raw = b'{"prompt": "a",' + big.encode() + b"}"
        while True:  # until its death is known
            try:
                await parse(parser, "/v1/completions", raw)
                break
            except ApiError as error:
                assert error.status == 413
        monkeypatch.setattr(parsing, "PARSE_S", 0.0)
        with pytest.raises(ApiError) as refused:
            await parse(parser, "/v1/completions", raw)
        assert refused.value.status == 413
        monkeypatch.undo()
        task = asyncio.ensure_future(parse(parser, "/v1/completions", raw))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        budget = Budget(8 * MIB)
        with budget.open() as other:
            other.grow(5 * MIB)
            with pytest.raises(ApiError) as refused:
                await parse(parser, "/v1/completions", raw, budget)
        assert (refused.value.status, budget.held) == (503, 0)
        many = b'{"text": "a", "sampling_params": {"n": 60, "custom_params": {"a": "%b"}}}' % (
            b"x" * MIB
        )
        with pytest.raises(ApiError) as refused:
            await parse(parser, "/generate", many, budget)
        assert (refused.value.status, budget.held) == (413, 0)
        job, _ = await parse(parser, "/v1/completions", raw)
        assert len(job.singles) == 1
        await parser.stop()

    in_loop(check())


def test_small_bodies_never_leave_the_process():
    async def check() -> None:
        parser = Parser()
        job, charged = await parse(parser, "/v1/completions", b'{"prompt": "a", "n": 2}')
        assert len(job.singles) == 2
        assert charged > 0
        assert parser._process is None

    in_loop(check())


def test_parts_share_what_is_large():
    raw = json.dumps({"prompt": ["x" * 9000, "y" * 9000], "n": 4, "suffix": "z" * 9000}).encode()
    job = splitting.parse("/v1/completions", raw)
    assert len(pack(job)) == 3
    first, second = job.singles[0].body, job.singles[1].body
    assert first["prompt"] is second["prompt"]
    assert first["suffix"] is job.singles[-1].body["suffix"]
    assert json.loads(b"".join(segments({"prompt": first["prompt"]}))) == {"prompt": "x" * 9000}


@pytest.mark.parametrize(
    "text", ["[" + "[]," * 999 + "[]]", "[" + "{}," * 999 + "{}]", '["' + "é😀" * 9999 + '"]',
             "[" + '"ab",' * 999 + '"ab"]', "[" + "1.5," * 999 + "1.5]", '{"a": {"b": [1, 2]}}']
)  # fmt: skip
def test_the_weight_of_a_body_is_at_least_what_it_takes(text):
    import tracemalloc

    import orjson

    raw = text.encode()
    tracemalloc.start()
    value = orjson.loads(raw)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert value is not None
    assert taken <= weight(raw, values(raw)) + 4096
