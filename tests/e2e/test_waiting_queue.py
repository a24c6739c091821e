"""Shortest job first with aging on real workers: who is prefilled first, and that nothing else
changes. Plain workers, tensor parallel ones, and prefill workers with late dispatch."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from tests.e2e.worker_process import TWO_RANKS, worker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("waiting-order")]

CHUNKS = ("--chunked-prefill-size", "256", "--sleep-on-idle")
LONG, SHORT = 1200, 20
TOKENS = 4
AGE_S = 2.0
FLOOD_S = 15.0
FLOODING = 32
"""Clients: some requests wait even while this process is not given a core for half a second."""


async def finished_in(url: str, bodies: Sequence[dict[str, Any]]) -> tuple[list[int], list[Any]]:
    """Send all, each a moment after the other; indices as they came to their end, and answers."""
    order: list[int] = []
    async with calls.session() as http:

        async def one(index: int, body: dict[str, Any]) -> calls.Answer:
            answer = await calls.generate(http, url, body)
            order.append(index)
            return answer

        tasks = []
        for index, body in enumerate(bodies):
            tasks.append(asyncio.create_task(one(index, body)))
            await asyncio.sleep(0.02)
        return order, await asyncio.gather(*tasks)


def long_ones_then_a_short(name: str) -> list[list[int]]:
    """Seven long prompts, then a short one."""
    return [*(calls.prompt(f"{name}-{n}", LONG) for n in range(7)), calls.prompt(name, SHORT)]


def mixed(name: str, count: int) -> list[list[int]]:
    """All lengths, a third of them with a common beginning."""
    head = calls.prompt(f"{name}-head", 150)
    lengths = [15 + 97 * n % 700 for n in range(count)]
    return [
        (head if n % 3 == 0 else []) + calls.prompt(f"{name}-{n}", length)
        for n, length in enumerate(lengths)
    ]


def check(answers: Sequence[calls.Answer], asked: list[list[int]], reference: Reference) -> None:
    assert [answer.error for answer in answers] == [""] * len(asked)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(asked, TOKENS, said)


def place_of_the_short_one(url: str, name: str, reference: Reference) -> int:
    """Where among eight it comes to its end, when it was sent last."""
    asked = long_ones_then_a_short(name)
    bodies = [calls.greedy(ids, TOKENS, stream=False) for ids in asked]
    order, answers = calls.run(finished_in(url, bodies))
    check(answers, asked, reference)
    return int(order.index(len(asked) - 1))


async def under_a_flood(url: str) -> tuple[float, bool]:
    """Seconds that a long prompt takes while clients send shorter ones without a pause, and
    whether they still did when it was done."""
    running = True
    async with calls.session() as http:

        async def client(number: int) -> None:
            turn = 0
            while running:
                turn += 1
                ids = calls.prompt(f"flood-{number}-{turn}", 200)
                assert not (await calls.generate(http, url, calls.greedy(ids, 1, False))).error

        async def end() -> None:
            nonlocal running
            await asyncio.sleep(FLOOD_S)
            running = False

        clients = [asyncio.create_task(client(number)) for number in range(FLOODING)]
        timer = asyncio.create_task(end())
        await asyncio.sleep(1.0)
        begin = time.perf_counter()
        long = await calls.generate(http, url, calls.greedy(calls.prompt("old", LONG), 1, False))
        took, flooded = time.perf_counter() - begin, running
        assert not long.error
        running = False
        timer.cancel()
        await asyncio.gather(*clients)
    return took, flooded


def test_short_ones_first_and_long_ones_do_not_starve(tmp_path: Path, reference: Reference) -> None:
    with worker(*CHUNKS, log=tmp_path / "sjf.log", TOOLKIT_WAITING=f"sjf:{AGE_S}") as url:
        assert place_of_the_short_one(url, "overtakes", reference) <= 3
        took, flooded = calls.run(under_a_flood(url))
        assert flooded, "it had to wait for the end of the flood"
        assert took > 0.9 * AGE_S, "shorter ones went first until it was old"


def test_without_the_variable_the_order_is_that_of_arrival(
    plain_server: str, reference: Reference
) -> None:
    assert place_of_the_short_one(plain_server, "waits", reference) >= 6


SETTINGS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "tp2": (("--tp-size", "2", "--enable-priority-scheduling", "--sleep-on-idle"), TWO_RANKS),
    "dp": (
        ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention", "--enable-dp-lm-head"),
        TWO_RANKS,
    ),
    "bare": (("--disable-radix-cache", "--disable-overlap-schedule", "--sleep-on-idle"), {}),
}


# Ranks of "tp2" take one order, as those of "dp" do; there each rank has requests of its own.
@pytest.mark.parametrize(
    "setting", ["tp2", *(pytest.param(name, marks=pytest.mark.full) for name in ("dp", "bare"))]
)
def test_every_token_is_what_it_was(setting: str, tmp_path: Path, reference: Reference) -> None:
    """Ranks whose orders differed would hang, or mix up the requests."""
    flags, env = SETTINGS[setting]
    asked = mixed(setting, 30)
    bodies = [calls.greedy(ids, TOKENS, stream=False) for ids in asked]
    if "--enable-priority-scheduling" in flags:
        bodies = [body | {"priority": n % 3} for n, body in enumerate(bodies)]
    log, chunk = tmp_path / f"{setting}.log", CHUNKS[:2]
    with worker(*chunk, *flags, log=log, TOOLKIT_WAITING="sjf:0.5", **env) as url:
        _, answers = calls.run(finished_in(url, bodies))
    check(answers, asked, reference)
    assert "Waiting queue, shortest first" in log.read_text(errors="replace")


def test_a_decode_worker_is_refused(tmp_path: Path) -> None:
    flags = (
        "--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "mooncake_tcp",
    )  # fmt: skip
    with (
        pytest.raises(RuntimeError, match=r"exit 78[\s\S]*a decode worker prefills nothing"),
        worker(*flags, log=tmp_path / "decode.log", TOOLKIT_WAITING="sjf:5"),
    ):
        pass


def test_prefill_workers_with_late_dispatch(tmp_path: Path, reference: Reference) -> None:
    """With few metadata buffers, so that most wait in the bootstrap queue, too."""
    recipe = {
        "name": "sjf",
        "device": "cpu",
        "model": "embedded",
        "prefill": {
            "kv_tokens": 8192,
            "max_running": 3,
            "waiting": {"order": "sjf", "age_s": 60},
            "args": {"chunked-prefill-size": 256},
        },
        "decode": {"kv_tokens": 16384, "max_running": 32},
        "router": {"dispatch": "late"},
    }
    with deployed(recipe, tmp_path) as up:
        url = up.router_url
        assert place_of_the_short_one(url, "late", reference) <= 4
        asked = mixed("late-mixed", 30)
        bodies = [calls.greedy(ids, TOKENS, stream=n % 2 == 0) for n, ids in enumerate(asked)]
        _, answers = calls.run(finished_in(url, bodies))
        check(answers, asked, reference)
        # Without streams nobody is told a first token, and finished prompts hold all slots for
        # longer: SGLang from 0.5.22 on would release some of them (`patches.pd.parked`).
        bodies = [calls.greedy(ids, TOKENS, stream=False) for ids in asked]
        for _ in range(2):
            _, answers = calls.run(finished_in(url, bodies))
            check(answers, asked, reference)
        assert calls.run(retried(url)) == 0


async def retried(url: str) -> int:
    async with aiohttp.ClientSession() as http, http.get(url + "/workers") as answer:
        return int((await answer.json())["retried"])
