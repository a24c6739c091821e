"""Bodies that are parsed elsewhere are the same requests; a process that dies is replaced."""

import asyncio
import json
import os
import signal
from typing import Any

import psutil
import pytest

from tests.present import present
from tests.processes import lives
from toolkit.router import parse_server, parsing, splitting
from toolkit.router.budget import Budget, values, weight
from toolkit.router.errors import ApiError
from toolkit.router.neighbours import neighbours
from toolkit.router.packed import Packed, pack, segments
from toolkit.router.parsing import Parser
from toolkit.router.request import Wanted
from toolkit.router.validate import guided

pytestmark = pytest.mark.touched("router")

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


async def parse(parser: Parser, path: str, raw: bytes, budget: Budget | None = None) -> Any:
    with (budget or Budget(512 * MIB)).open() as charge:
        chunks = [raw[start : start + 100_000] for start in range(0, len(raw), 100_000)]
        job = await parser.parse(path, chunks, charge, wanted=WANTED, limit=64)
        assert chunks == []
        return job, charge.bytes


async def test_a_job_is_the_same_wherever_it_was_parsed() -> None:
    parser = Parser()
    for path, body in BODIES:
        raw = json.dumps(body).encode()
        job, charged = await parse(parser, path, raw)
        here = splitting.parse(path, raw, wanted=WANTED, limit=64)
        assert parser.elsewhere
        assert len(job.sub_requests) == len(here.sub_requests)
        assert (job.merged, job.stream, job.per_prompt) == (
            here.merged, here.stream, here.per_prompt)  # fmt: skip
        for one, other in zip(job.sub_requests, here.sub_requests, strict=True):
            assert (one.view, one.index, one.first_sample, one.prompt_bytes) == (
                other.view, other.index, other.first_sample, other.prompt_bytes)  # fmt: skip
            assert any(type(value) is Packed for value in one.body.values()) or len(raw) > 1000
            assert json.loads(b"".join(segments(one.body))) == other.body
        assert charged < 2 * len(raw) + MIB
        assert sum(len(b"".join(segments(one.body))) for one in job.sub_requests) < charged * 4
    await parser.stop()


BIG = ' "x": "' + "y" * MIB + '"'


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("[" + "1," * MIB + "1]", 400, "valid dictionary"),
        ('{"prompt": "a", "n": 0,' + BIG + "}", 400, "at least 1"),
        ('{"prompt": ["a"' + ', "a"' * 99 + "]," + BIG + "}", 400, "at most 64"),
        ('{"prompt": ' + "[" * MIB + "}", 400, "JSON"),
        ('{"prompt": "a", "x": [' + "[]," * (5 * MIB) + "[]]}", 413, "JSON values"),
    ],
)
async def test_errors_come_back_as_they_are(text: Any, status: int, words: str) -> None:
    parser = Parser()
    with pytest.raises(ApiError) as refused:
        await parse(parser, "/v1/completions", text.encode())
    assert refused.value.status == status
    assert words in str(refused.value.body("completions"))
    await parser.stop()


async def test_processes_are_bounded_in_memory_and_what_is_cancelled_leaves_nothing() -> None:
    parser = Parser()
    raw = b'{"prompt": "a",' + BIG.encode() + b"}"
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
    assert len(job.sub_requests) == 1
    await parser.stop()


SMALL = b'{"prompt": "a", "regex": "a"}'


async def until_gone(pid: int) -> None:
    while lives(pid):
        await asyncio.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("forked", [False, True])
async def test_a_process_that_died_is_replaced_and_so_is_the_server_of_them(forked: bool) -> None:
    started = parse_server.forked() if forked else None
    parser = Parser(started=started)
    await parse(parser, "/v1/completions", SMALL)
    (process,) = parser._idle
    os.kill(process.pid, signal.SIGKILL)
    await until_gone(process.pid)
    while process.alive:
        await asyncio.sleep(0.001)
    await parse(parser, "/v1/completions", SMALL)
    (other,) = parser._idle
    server = psutil.Process(other.pid).ppid()
    assert process.pid != other.pid
    os.kill(server, signal.SIGKILL)
    await until_gone(other.pid)  # it does not outlive its server
    while other.alive or not present(parser._server).gone:
        await asyncio.sleep(0.001)
    job, _ = await parse(parser, "/v1/completions", SMALL)
    assert job.sub_requests[0].body["regex"] == "a"
    (third,) = parser._idle
    assert psutil.Process(third.pid).ppid() != server
    await parser.stop()
    await until_gone(third.pid)


async def test_a_process_that_dies_with_a_body_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = Parser()
    await parse(parser, "/v1/completions", SMALL)
    (process,) = parser._idle
    os.kill(process.pid, signal.SIGSTOP)
    asking = asyncio.ensure_future(parse(parser, "/v1/completions", SMALL))
    while parser._idle:
        await asyncio.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ApiError) as refused:
        await asking
    assert refused.value.status == 413
    monkeypatch.setattr(parsing, "WALL_S", 0.0)
    monkeypatch.setattr(parsing, "WALL", 0.0)
    with pytest.raises(ApiError) as refused:
        await parse(parser, "/v1/completions", SMALL)
    assert (refused.value.status, refused.value.retry_after) == (503, 2)
    monkeypatch.undo()
    await parse(parser, "/v1/completions", SMALL)
    await parser.stop()


def endless(name: str, value: str, limits: object) -> str | None:
    """A check of patterns that takes for ever, in Python or in C."""
    while value == "in Python":
        pass
    if value == "broken":
        raise KeyError("a secret")
    return str(sum(range(10**10))) if value == "in C" else None  # no signal breaks into it


async def test_what_takes_more_cpu_than_it_may_is_refused_with_the_field_that_did() -> None:
    good = guided.REGEX.wrong
    object.__setattr__(guided.REGEX, "wrong", endless)
    started = parse_server.forked()  # with these checks
    object.__setattr__(guided.REGEX, "wrong", good)
    parser = Parser(cpu_s=0.05, started=started)
    for path, body, field in (
        ("/v1/completions", {"prompt": "a", "regex": "in Python"}, "regex"),
        ("/generate", {"text": "a", "sampling_params": {"regex": "in Python"}}, "regex"),
        ("/v1/completions", {"prompt": "a", "regex": "in C"}, ""),
    ):
        with pytest.raises(ApiError) as refused:
            await parse(parser, path, json.dumps(body).encode())
        message = refused.value.message
        assert refused.value.status == 400
        assert "50 ms of CPU time" in message and "parse_cpu_ms" in message
        assert message.startswith(f"Checking {field} " if field else "Parsing and checking")
        assert len(parser._idle) == (1 if field else 0), "only code in C costs a process"
    with pytest.raises(ApiError) as refused:
        await parse(parser, "/v1/completions", b'{"prompt": "a", "regex": "broken"}')
    assert (refused.value.status, "secret" in refused.value.message) == (500, False)
    await parse(parser, "/v1/completions", b'{"prompt": "a", "ebnf": "root ::= \\"a\\""}')
    await parser.stop()


async def test_ordinary_bodies_never_leave_the_process_and_others_do() -> None:
    parser = Parser()
    chat: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hello, you: " * 500}] * 9,
        "n": 2,
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for path, body in (
        ("/v1/completions", {"prompt": "a", "n": 2}),
        ("/v1/completions", {"prompt": [5, 6] * 3000, "stop": ["a", "b"], "regex": None}),
        ("/v1/chat/completions", {**chat, "tools": tools, "my_own": {"a": [1, {}]}}),
        ("/generate", {"text": "a", "sampling_params": {"top_k": 1, "regex": ""}}),
    ):
        job, charged = await parse(parser, path, json.dumps(body).encode())
        assert job.sub_requests and charged > 0
    assert (parser.elsewhere, parser._server) == (0, None)
    for number, (path, body) in enumerate((  # type: ignore[assignment]
        ("/v1/completions", {"prompt": "a", "stop_regex": ["a"]}),
        ("/v1/completions", {"prompt": "a", "b" * 65: 1}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1 for i in range(300)}}),
        ("/v1/completions", {"prompt": ["a"] * 300}),
        ("/v1/completions", {"prompt": "a", "x": float("inf")}),
        ("/v1/chat/completions", {**chat, "x": {"y": [{"json_schema": "{}"}]}}),
        ("/generate", {"text": ["a"], "sampling_params": [{"ebnf": 'root ::= "a"'}]}),
    ), 1):  # fmt: skip
        raw = json.dumps(body).encode().replace(b'"regex"', b'"r\\u0065gex"')
        try:
            await parse(parser, path, raw)
        except ApiError as error:
            assert error.status == 400
        assert parser.elsewhere == number, body.keys()
    with pytest.raises(ApiError):
        await parse(parser, "/v1/completions", b'{"prompt": "a", "r\\u0065gex": 5}')
    assert parser.elsewhere == number + 1
    await parser.stop()


async def test_one_client_s_bodies_keep_nobody_else_s_waiting() -> None:
    """A hundred bodies of one client are there first: of two other clients' nearly all are done
    before them."""
    parser = Parser()
    done: list[str] = []
    raw = b'{"prompt": "a", "logit_bias": {' + b",".join(
        b'"%d": 1' % i for i in range(3000)) + b"}}"  # fmt: skip

    async def one(client: str) -> None:
        with Budget(512 * MIB).open() as charge:
            await parser.parse("/v1/completions", [raw], charge, client=client)
        done.append(client)

    calls = [one("greedy") for _ in range(100)] + [one(name) for name in "bcbcbcbcbc"]
    await asyncio.gather(*calls)
    assert done[:40].count("b") == done[:40].count("c") == 5
    assert (parser.waiting, parser._queue.running, parser._turns) == (0, 0, {})
    await parser.stop()


async def test_who_waits_for_too_long_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser = Parser()
    await parse(parser, "/v1/completions", SMALL)
    monkeypatch.setattr(parsing, "WAIT_S", 0.05)
    for process in (one := parser._queue.enter("x"), other := parser._queue.enter("x")):
        assert parser._queue.next() is process
    with pytest.raises(ApiError) as refused:
        await parse(parser, "/v1/completions", SMALL)
    assert (refused.value.status, refused.value.retry_after) == (503, 2)
    parser._queue.leave(present(one))
    parser._queue.leave(present(other))
    await parse(parser, "/v1/completions", SMALL)
    parser._queue.each = 0
    with pytest.raises(ApiError) as refused:
        await parse(parser, "/v1/completions", SMALL)
    assert (refused.value.status, refused.value.retry_after) == (503, 2)
    await parser.stop()


def test_addresses_of_one_site_take_turns_as_one() -> None:
    assert neighbours("10.0.0.1") == "10.0.0.1" != neighbours("10.0.0.2")
    assert neighbours("2001:db8::1") == neighbours("2001:db8::ffff:1")
    assert neighbours("2001:db8::1") != neighbours("2001:db8:0:1::1")
    assert neighbours("::ffff:10.0.0.1") != neighbours("::ffff:10.0.0.2")
    assert neighbours("fe80::1%eth0") == neighbours("fe80::2%eth0")
    assert neighbours("") == ""


def test_parts_share_what_is_large() -> None:
    raw = json.dumps({"prompt": ["x" * 9000, "y" * 9000], "n": 4, "suffix": "z" * 9000}).encode()
    job = splitting.parse("/v1/completions", raw)
    assert len(pack(job)) == 3
    first, second = job.sub_requests[0].body, job.sub_requests[1].body
    assert first["prompt"] is second["prompt"]
    assert first["suffix"] is job.sub_requests[-1].body["suffix"]
    assert json.loads(b"".join(segments({"prompt": first["prompt"]}))) == {"prompt": "x" * 9000}


@pytest.mark.parametrize(
    "text", ["[" + "[]," * 999 + "[]]", "[" + "{}," * 999 + "{}]", '["' + "é😀" * 9999 + '"]',
             "[" + '"ab",' * 999 + '"ab"]', "[" + "1.5," * 999 + "1.5]", '{"a": {"b": [1, 2]}}']
)  # fmt: skip
def test_the_weight_of_a_body_is_at_least_what_it_takes(text: Any) -> None:
    import tracemalloc

    import orjson

    raw = text.encode()
    tracemalloc.start()
    value = orjson.loads(raw)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert value is not None
    assert taken <= weight(raw, values(raw)) + 4096
