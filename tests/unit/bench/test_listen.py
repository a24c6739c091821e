"""A benchmark that listens to workers: they speak with the real frames of a real hub, break off, or
do not speak at all."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from patches.steps import request_times
from patches.steps.step_log import FIELDS, StepBlock
from patches.streams.expert_stream import ExpertHub
from tests.unit.bench.steps import done, step
from toolkit.bench import listen
from toolkit.bench.listen import DecodeWatch
from toolkit.bench.runner import BenchLoad, RunOutcome, check, new_session, play
from toolkit.bench.session import Settings, measure
from toolkit.bench.target import Target
from toolkit.bench.workload import Item, Workload
from toolkit.contract import VERSION
from toolkit.contract.events import Hello, encode


class FakeServer:
    """A router and its two workers in one: real frames of a real hub, invented steps."""

    def __init__(self, step_log: bool = True, router: bool = True) -> None:
        self.hub = ExpertHub(lambda steps: None)
        self.step_log, self.router = step_log, router
        self.hang = False
        self.labels: list[str | None] = []
        self.tokens: list[int] = []
        self.before_answer: Callable[[], None] = lambda: None
        self.cut = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def up(self) -> AsyncIterator[FakeServer]:
        app = web.Application()
        if self.router:
            app.router.add_get("/workers", self.workers)
        if self.step_log:
            app.router.add_get("/toolkit/experts", self.experts)
            app.router.add_get("/toolkit/events", self.events)
        app.router.add_post("/generate", self.generate)
        app.router.add_get("/v1/models", self.models)
        async with TestServer(app) as server:
            self.url = str(server.make_url("")).rstrip("/")
            try:
                yield self
            finally:
                self.cut.set()

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})

    async def workers(self, _: web.Request) -> web.Response:
        common = {"url": self.url, "healthy": True, "completed": 0, "failed": 0}
        rows = [
            {"name": "prefill-0", "role": "prefill", "dp_rank": 0, **common, "url": "http://x:1"},
            {"name": "decode-0", "role": "decode", "dp_rank": 0, **common},
            {"name": "decode-0", "role": "decode", "dp_rank": 1, **common},
        ]
        return web.json_response({"workers": rows})

    async def events(self, request: web.Request) -> web.StreamResponse:
        if self.hang:
            await self.cut.wait()
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(encode(Hello(contract=VERSION, device="cpu")))
        await self.cut.wait()
        return response

    async def experts(self, request: web.Request) -> web.StreamResponse:
        assert request.query["share"] == "0.0", "a benchmark asks for no experts"
        response = web.StreamResponse()
        await response.prepare(request)
        cut = asyncio.ensure_future(self.cut.wait())
        frames = self.hub.subscribe(0.0)
        while True:
            frame = asyncio.ensure_future(anext(frames))
            await asyncio.wait({frame, cut}, return_when=asyncio.FIRST_COMPLETED)
            if cut.done():
                frame.cancel()
                return response
            with contextlib.suppress(ConnectionError):
                await response.write(frame.result())

    async def generate(self, request: web.Request) -> web.Response:
        """All tokens at once, after which the rank that "ran" it logs its steps."""
        body = await request.json()
        self.labels.append(request.headers.get("x-toolkit-label"))
        count = body["sampling_params"]["max_new_tokens"]
        self.tokens.append(count)
        self.before_answer()
        rows = np.array([step(2, 0, 12, end=1e-5 * n) for n in range(count - 1)], np.float32)
        took = 0.02 * (count - 2)
        finished = np.array([done(count, took, took / 4)], np.float32)
        origin = time.monotonic() - 7.0  # another machine's clock
        dp_rank = len(self.tokens) % 2
        self.hub.publish_steps(
            StepBlock(dp_rank, origin, rows.shape, rows.tobytes(), finished.tobytes())
        )
        answer = b'data: {"text":"x","meta_info":{"prompt_tokens":3,"completion_tokens":%d}}\n\n'
        return web.Response(body=answer % count + b"data: [DONE]\n\n")


ITEMS = tuple(Item(f"p{n}", 4 + n % 3, domain="code", language="en") for n in range(12))


def played(server: FakeServer, load: BenchLoad | None = None) -> RunOutcome:
    async def main() -> RunOutcome:
        async with server.up(), new_session() as session:
            target = Target(server.url, "m", None, None)
            return await play(session, target, Workload("w", ITEMS), load or BenchLoad())

    return asyncio.run(main())


def test_a_run_hears_every_step_and_every_finished_request() -> None:
    server = FakeServer()
    outcome = played(server)
    check(outcome, len(ITEMS))
    assert outcome.note == ""
    assert outcome.remarks() == []
    assert outcome.decode is not None
    assert outcome.decode.own_clock == "cpu"
    assert [each.name for each in outcome.decode.ranks] == ["decode-0", "decode-0/1"]
    metrics = outcome.decode.metrics()
    assert metrics["decode_steps"] == sum(item.output_tokens - 1 for item in ITEMS)
    assert metrics["distinct_experts"] == pytest.approx(12)
    assert metrics["median_worker_tpot_ms"] == pytest.approx(5, rel=1e-3)
    assert metrics["median_worker_tpot_wall_ms"] == pytest.approx(20, rel=1e-3)
    column = request_times.FIELDS.index("output_tokens")
    heard = [int(n) for each in outcome.decode.ranks for n in each.finished[:, column]]
    assert sorted(heard) == sorted(sample.output_len for sample in outcome.samples)
    # The workers' clocks were 7 s behind: ours is what comes out.
    end = FIELDS.index("end")
    begun = outcome.samples[0].start_time
    for each in outcome.decode.ranks:
        assert begun - 0.2 < each.steps[:, end].min() < each.steps[:, end].max() < begun + 5


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (FakeServer(router=False), "no toolkit router"),
        (FakeServer(step_log=False), "has no /toolkit/experts"),
    ],
)
def test_nobody_to_listen_to_is_a_remark_and_no_error(server: FakeServer, says: str) -> None:
    outcome = played(server)
    check(outcome, len(ITEMS))
    assert outcome.decode is None
    [remark] = outcome.remarks()
    assert says in remark
    assert "\n" not in remark


def test_a_worker_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "CONNECT_S", 0.2)
    server = FakeServer()
    server.hang = True
    outcome = played(server)
    check(outcome, len(ITEMS))
    assert "did not answer within 0.2 s" in outcome.remarks()[0]


def test_a_stream_that_breaks_in_mid_run_costs_only_its_numbers() -> None:
    server = FakeServer()
    server.before_answer = lambda: server.cut.set() if len(server.tokens) == 7 else None
    outcome = played(server, BenchLoad(concurrency=1))
    check(outcome, len(ITEMS))
    assert "went away" in outcome.remarks()[0]
    assert outcome.decode is not None
    assert 0 < outcome.decode.metrics()["decode_steps"] < sum(i.output_tokens - 1 for i in ITEMS)


def test_rows_that_never_come_are_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "LAST_ROWS_S", 0.3)

    async def main() -> float:
        async with FakeServer().up() as server, new_session() as session:
            async with session.get(server.url + "/workers") as response:
                state = await response.json()
            async with DecodeWatch(session, state) as watch:
                start = time.monotonic()
                found = await watch.take(5)
                assert found is not None
                assert found.metrics()["decode_steps"] == 0
                return time.monotonic() - start

    assert 0.25 < asyncio.run(main()) < 2


@pytest.mark.parametrize(
    ("label", "sent"), [(None, None), ("domain", "code"), ("language", "en"), ("cell", "code/en")]
)
def test_the_router_is_told_the_label(label: Any, sent: str | None) -> None:
    server = FakeServer()
    played(server, BenchLoad(label=label))
    assert set(server.labels) == {sent}


async def test_a_report_has_the_decode_workers_by_name(tmp_path: Path) -> None:
    from rich.console import Console

    from toolkit.bench.metrics import Slo
    from toolkit.bench.phases import TrafficPhase
    from toolkit.bench.report import decode_table, metrics_table, phase_table, write_json
    from toolkit.bench.source import Source

    phases = (TrafficPhase(6, languages="en"), TrafficPhase(4, domains="code", max_tokens=5))
    settings = Settings(Source(phases=phases, max_tokens=3), BenchLoad(label="cell"), Slo())
    async with FakeServer().up() as server:
        report: Any = await measure(server.url, settings)
    document = report.document
    assert document["metrics"]["distinct_experts"] == pytest.approx(12)
    assert set(document["decode_workers"]) == {"decode-0", "decode-0/1"}
    assert [phase["completed"] for phase in document["phases"]] == [6, 4]
    assert [phase["total_output_tokens"] for phase in document["phases"]] == [18, 20]
    assert sum(phase["decode_steps"] for phase in document["phases"]) == 6 * 2 + 4 * 4
    console = Console(width=120, record=True, file=io.StringIO())
    for table in (
        metrics_table(report.metrics, "t"),
        decode_table(report.metrics, report.decode),
        phase_table(report.phases),
    ):
        console.print(table)
    text = console.export_text()
    for words in ("TPOT in the worker, own core", "decode step, wall", "distinct experts", "12.00"):
        assert words in text
    write_json(tmp_path / "result.json", document)
    assert json.loads((tmp_path / "result.json").read_text())["remarks"] == []
