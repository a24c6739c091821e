"""A sample of live traffic: what is complete is counted, what is read too slowly is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from patches.experts.capture import ExpertsCaptured
from patches.steps.step_log import FIELDS
from patches.streams.expert_stream import ExpertHub
from toolkit.contract import VERSION
from toolkit.contract.events import Experts, Hello, Ping, encode
from toolkit.contract.frames import StepsHead
from toolkit.contract.paths import EVENTS, EXPERTS
from toolkit.profile import live, tap
from toolkit.profile.live import Listened, listen
from toolkit.profile.measure import Measured
from toolkit.profile_folder.errors import ProfileError

LAYERS, COUNT, TOP_K = 3, 8, 2
ROWS = 5


class Worker:
    """Both phases of a worker, told what a scheduler would say by the test."""

    def __init__(self) -> None:
        self.hub = ExpertHub(lambda _: None)
        self.url = ""

    def say(self, rid: str, phase: str, whole: bool = True) -> None:
        ids = np.tile(np.arange(TOP_K, dtype=np.int16), (ROWS, LAYERS, 1))
        shape = (ROWS, LAYERS, TOP_K)
        told = ExpertsCaptured(rid, phase, 0, 0, shape, ids.tobytes(), ROWS, 0, whole, 1.0)
        self.hub.publish_experts(told)

    def step(self, rows: int) -> None:
        body = np.ones((rows, len(FIELDS) + LAYERS), dtype=np.float32)
        self.hub.publish(StepsHead(0, 0.0, FIELDS, body.shape), body.tobytes())

    async def events(self, request: web.Request) -> web.StreamResponse:
        experts = Experts(COUNT, TOP_K, LAYERS, captured=True)
        hello = Hello(contract=VERSION, role="null", fingerprint="f", experts=experts)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(encode(hello))
        while True:
            await asyncio.sleep(0.5)
            await response.write(encode(Ping()))

    async def experts(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for frame in self.hub.subscribe(float(request.query["share"])):
            await response.write(frame)
        return response

    async def workers(self, _: web.Request) -> web.Response:
        return web.json_response({"workers": [{"url": self.url, "role": "plain"}]})


@asynccontextmanager
async def worker() -> AsyncIterator[Worker]:
    made = Worker()
    app = web.Application()
    app.router.add_get(EVENTS, made.events)
    app.router.add_get(EXPERTS, made.experts)
    app.router.add_get("/workers", made.workers)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}"
    try:
        yield made
    finally:
        await runner.cleanup()


async def until_listened(known: Worker, sampling: asyncio.Task[Measured]) -> None:
    while not known.hub.share:
        if sampling.done():
            await sampling
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PERIOD_S", 0.05)


async def test_whole_requests_are_counted_and_others_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "WRITE_S", 0.2)
    async with worker() as known:
        told: list[Listened] = []
        sampling = asyncio.create_task(listen(known.url, 1.0, 1.0, tmp_path, told.append))
        await until_listened(known, sampling)
        known.step(5000)
        for number in range(6):
            known.say(f"r{number}", "prefill")
            known.say(f"r{number}", "decode", whole=number != 4)
            await asyncio.sleep(0.1)
        known.say("half", "prefill")
        measured = await sampling
    assert len(measured.prompts) == told[-1].requests == 5 and told[-1].dropped == 0
    shard = measured.shard
    used = np.tile([ROWS] * TOP_K + [0] * (COUNT - TOP_K), (5, LAYERS, 1))
    assert (shard.prefill_counts == used).all() and (shard.decode_counts == used).all()
    assert shard.indices.tolist() == list(range(5))
    fitted = sum(not each.held_out for each in measured.prompts)
    pairs = measured.affinity["prefill"][0, :TOP_K, :TOP_K]
    assert 0 < fitted < 5 and (pairs == fitted * ROWS).all()
    assert 0 < len(shard.steps) <= live.MOST_STEPS


async def test_what_finds_no_room_is_dropped_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap, "MOST_HELD", 4 * ROWS * LAYERS * TOP_K)
    monkeypatch.setattr(live, "PERIOD_S", 0.5)  # all come before any is counted
    async with worker() as known:
        told: list[Listened] = []
        sampling = asyncio.create_task(listen(known.url, 1.0, 1.5, tmp_path, told.append))
        await until_listened(known, sampling)
        for number in range(10):
            known.say(f"r{number}", "prefill")
            known.say(f"r{number}", "decode")
        measured = await sampling
    assert len(measured.prompts) == 1
    assert told[-1].dropped == 18


async def test_it_ends_when_as_much_is_kept_as_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_BYTES", 2 * 2 * LAYERS * COUNT * 4)
    async with worker() as known:
        told: list[Listened] = []
        sampling = asyncio.create_task(listen(known.url, 1.0, 60.0, tmp_path, told.append))
        await until_listened(known, sampling)
        for number in range(3):
            known.say(f"r{number}", "prefill")
            known.say(f"r{number}", "decode")
        measured = await asyncio.wait_for(sampling, 10.0)
    assert len(measured.prompts) == 3 and told[-1].left_s > 50.0


async def test_without_traffic_it_says_so(tmp_path: Path) -> None:
    async with worker() as known:
        with pytest.raises(ProfileError, match="no sampled request finished"):
            await listen(known.url, 1.0, 0.2, tmp_path, lambda _: None)
