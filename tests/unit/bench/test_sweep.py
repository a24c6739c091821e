"""Sweeps and several runs against a server whose capacity is known."""

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from tests.unit.bench.pages import single, swept, talked
from tests.unit.html_page import Page
from toolkit.bench import page_sweep
from toolkit.bench.compare import Arm
from toolkit.bench.errors import BenchError
from toolkit.bench.knee import KneeSearch
from toolkit.bench.metrics import Slo
from toolkit.bench.page import render
from toolkit.bench.repeats import runs_table, sweep_lines, sweep_table
from toolkit.bench.runner import BenchLoad
from toolkit.bench.session import Report, Settings, measure
from toolkit.bench.several import joined, over_runs
from toolkit.bench.source import Source
from toolkit.bench.sweep import at_rate
from toolkit.bench.swept import Curve, Point, Range, Swept
from toolkit.bench.workload import Item, Workload
from toolkit.cli.bench_repeats import Repeated

SERVICE_S = 0.01
"""One request at a time: 100 requests/s at most."""


class OneByOne:
    """A router whose only worker is itself. Policy `slow` takes twice as long. `room`: more
    requests than that at a time are refused."""

    def __init__(self, room: int | None = None, router: bool = True, dead: bool = False) -> None:
        self.lock = asyncio.Lock()
        self.here, self.room, self.router, self.dead = 0, room, router, dead
        self.policies = {"prefill": "p", "decode": "as_it_was"}
        self.flushes, self.played, self.orders = 0, 0, []  # type: ignore[var-annotated]
        self.texts: list[str] = []
        self.url = ""

    async def workers(self, _: web.Request) -> web.Response:
        own = {"name": "w", "url": self.url, "role": "prefill", "healthy": True}
        return web.json_response({"workers": [own], "policies": self.policies, "dispatch": "late"})

    async def policy(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.policies = {**self.policies, **body}
        self.orders.append(body["decode"])
        return web.json_response({})

    async def flush(self, _: web.Request) -> web.Response:
        self.flushes += 1
        assert self.here == 0
        return web.Response()

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        self.texts.append((await request.json())["text"])
        if self.room is not None and self.here >= self.room:
            return web.Response(status=429, text="no room")
        if self.dead:
            return web.Response(status=500, text="broken")
        self.here += 1
        self.played += 1
        try:
            async with self.lock:
                await asyncio.sleep(SERVICE_S * (1 + (self.policies["decode"] == "slow")))
        finally:
            self.here -= 1
        answer = web.StreamResponse()
        await answer.prepare(request)
        meta = {"prompt_tokens": 5, "completion_tokens": 1, "cached_tokens": 1}
        line = json.dumps({"text": "x", "meta_info": meta}, separators=(",", ":"))
        await answer.write(f"data: {line}\n\ndata: [DONE]\n\n".encode())
        return answer


def run(
    server: OneByOne, settings: Settings, say: Callable[[str], None] = lambda _: None
) -> Report:
    async def main() -> Report:
        app = web.Application()
        if server.router:
            app.router.add_get("/workers", server.workers)
            app.router.add_post("/admin/policy", server.policy)
        app.router.add_post("/flush_cache", server.flush)
        app.router.add_get("/v1/models", server.models)
        app.router.add_post("/generate", server.generate)
        async with TestServer(app) as up:
            server.url = str(up.make_url("")).rstrip("/")
            return await measure(server.url, settings, say)

    return asyncio.run(main())


def settings(low: float, high: float, requests: int = 40, **more: Any) -> Settings:
    asked = Range(low, high, **{"runs": 2, "within": 1.0} | more.pop("range", {}))
    return Settings(
        Source(num_requests=requests, max_tokens=1),
        BenchLoad(open_loop=True, concurrency=None),
        Slo(ttft_ms=250.0),
        warmup=0,
        sweep=asked,
        **more,
    )


@pytest.mark.slow
def test_a_sweep_ends_where_the_server_cannot_follow() -> None:
    """What it can do is 100 requests/s: of 40 at 480/s more than a tenth must wait too long."""
    said: list[str] = []
    server = OneByOne()
    report = run(server, settings(60, 480), said.append)
    assert report.swept is not None
    (curve,) = report.swept.curves
    low, high = curve.search.bracket
    assert low < high <= 480 and curve.knee == (low or None)
    assert low == 0 or (low >= 60 and high <= 2 * low)
    assert [point.rate for point in curve.points] == [60, 120, 240, 480][: len(curve.points)]
    # No run is lost, and each begins with empty caches.
    assert server.flushes == 2 * len(curve.points)
    assert server.played == 40 * server.flushes
    assert all(len(point.runs) == 2 for point in curve.points)
    for point in curve.points:
        assert (point.share >= 0.9) == (point.rate <= low)
        assert point.runs[0]["completed"] == 40
    found = report.document["sweep"]
    assert found["curves"][0]["knee_bracket"] == [low, high]
    first = found["curves"][0]["rates"][0]
    assert first["request_rate"] == 60 and len(first["runs"]) == 2
    fraction = first["over_runs"]["goodput_fraction"]
    assert fraction["low"] <= fraction["value"] <= fraction["high"] and fraction["runs"] == 2
    assert sum(" 1/2" in line for line in said) == len(curve.points)
    assert server.policies["decode"] == "as_it_was" and server.orders == []


def test_a_plain_server_can_be_swept_too() -> None:
    server = OneByOne(router=False)
    report = run(server, settings(480, 480, range={"runs": 1}))
    assert report.swept is not None and report.swept.curves[0].knee is None
    assert (server.flushes, server.played) == (1, 40)


@pytest.mark.slow
def test_each_policy_has_a_knee_of_its_own_and_the_router_gets_its_own_back() -> None:
    server = OneByOne()
    arms = (Arm.parse("quick"), Arm.parse("slow"))
    report = run(server, settings(40, 80, 20, arms=arms))
    assert report.swept is not None
    quick, slow = report.swept.curves
    assert (quick.name, slow.name) == ("quick", "slow")
    assert server.policies == {"prefill": "p", "decode": "as_it_was", "dispatch": "late"}
    # After the trial of both they take turns, mirrored: each run of one beside one of the other.
    plays = server.orders[2:-1]
    assert {tuple(sorted(plays[n : n + 2])) for n in (0, 2)} == {("quick", "slow")}
    assert plays[0] == plays[3]
    lines = sweep_lines(report.swept)
    # On a busy machine a curve may have a doubt, which has a line of its own.
    doubts = [f"{curve.name}: {curve.doubt}" for curve in (quick, slow) if curve.doubt]
    first, second, last = [line for line in lines if line not in doubts]
    assert first.startswith("quick: ") and second.startswith("slow: ") and "quick / slow" in last


def test_the_refused_are_beyond_the_slo_and_no_error() -> None:
    report = run(OneByOne(room=3), settings(20, 640, 20, range={"runs": 1}))
    assert report.swept is not None
    (curve,) = report.swept.curves
    assert curve.points[-1].runs[0]["failed"] > 0
    assert curve.points[-1].share < 0.9


def test_what_fails_otherwise_is_an_error_with_its_rate() -> None:
    with pytest.raises(BenchError, match=r"quick 80/s: this run is an error(.|\n)*HTTP 500"):
        run(OneByOne(dead=True), settings(80, 160, arms=(Arm.parse("quick"), Arm.parse("slow"))))


def test_a_sweep_that_starts_beyond_the_knee_or_ends_before_it_says_so() -> None:
    above = run(OneByOne(), settings(800, 900, range={"runs": 1}))
    below = run(OneByOne(), settings(20, 20, 5, range={"runs": 1}))
    assert above.swept is not None and below.swept is not None
    assert "start lower" in sweep_lines(above.swept)[0]
    assert "go higher" in sweep_lines(below.swept)[0]
    assert above.swept.curves[0].knee is None
    assert any("ask for more --num-requests" in remark for remark in above.remarks)


def test_several_runs_have_intervals() -> None:
    server, said = OneByOne(), []  # type: ignore[var-annotated]
    chosen = Settings(
        Source(num_requests=6, max_tokens=1), BenchLoad(concurrency=2), Slo(1e6), warmup=0, runs=3
    )
    report = run(server, chosen, said.append)
    assert server.flushes == 3 and server.played == 18
    assert len(report.runs) == 3 and report.metrics is not None
    assert report.metrics["completed"] == 18 and len(report.document["ttfts"]) == 18
    ttft = report.document["over_runs"]["median_ttft_ms"]
    assert ttft["low"] <= ttft["value"] <= ttft["high"]
    assert ttft["value"] == pytest.approx(report.metrics["median_ttft_ms"])
    assert ttft["value"] == pytest.approx(
        sum(each["median_ttft_ms"] for each in report.document["runs"]) / 3
    )
    assert len(said) == 4 and "run 3 of 3" in said[-1]
    text = shown(runs_table(report.runs))
    assert "TTFT" in text and " to " in text and "goodput" in text


def test_what_warms_up_is_in_no_cache_of_what_is_counted() -> None:
    server = OneByOne()
    load = BenchLoad(concurrency=2)
    run(server, Settings(Source(num_requests=6, max_tokens=1), load, Slo(), warmup=4))
    warm, counted = server.texts[:4], server.texts[4:]
    assert len(counted) == 6
    assert sorted(text[::-1] for text in warm) == sorted(counted[:4])
    assert not set(warm) & set(counted)


def shown(table: Any) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_the_table_of_a_sweep_marks_the_knee() -> None:
    report = swept()
    assert report.swept is not None
    text = shown(sweep_table(report.swept.curves[0]))
    assert text.count(" knee") == 1 and "too fast" in text and "holds" in text
    lines = sweep_lines(report.swept)
    assert "knee at" in lines[0] and "over 3 runs" in lines[0]
    assert "over" not in sweep_lines(swept(runs=1).swept)[0], "one run has no interval"  # type: ignore[arg-type]
    assert lines[2].startswith("knee of eldr / shortest_queue: 1.") and lines[2].endswith("*")


def test_runs_that_differ_too_much_are_said_to() -> None:
    """A burst of other work in one of three runs is no knee."""

    def point(rate: float, *shares: float) -> Point:
        return Point(rate, [{"goodput_fraction": share} for share in shares])

    curve = Curve(
        None, Range(4, 16), KneeSearch(4, 16, 1.0), [point(4, 1, 1, 1), point(8, 1, 1, 0.1)]
    )
    curve.search.held, curve.search.failed = 4, 8
    assert curve.doubt.startswith("not certain: the runs at 8 requests/s differ too much")
    text = shown(sweep_table(curve))
    assert "too fast?" in text and "knee?" not in text
    found = Swept(curve.asked, [curve])
    assert sweep_lines(found)[1] == curve.doubt == found.as_json()["curves"][0]["knee_doubt"]
    assert page_sweep.keys(found)[0][:2] == ("Goodput knee, not certain", "4")
    curve.found[1] = point(8, 0.1, 0.2, 0.1)
    assert curve.doubt == "" and "?" not in shown(sweep_table(curve))


@pytest.mark.parametrize("arms", [1, 2])
def test_the_page_of_a_sweep_draws_every_curve_and_marks_every_knee(arms: int) -> None:
    report = swept(arms)
    assert report.swept is not None
    text = render(report)
    page = Page(text)
    words = " ".join(page.words).replace("\u00a0", " ")
    for curve in report.swept.curves:
        assert f"{curve.knee:g}" in words and curve.sentence in words
    assert "low 0.5, high 16, runs 3, attainment 0.9, within 0.1" in words
    assert "not certain" not in words
    drawn = [each for each in page.svgs if each.get("class") != "sign"]
    assert len(drawn) == 4
    for index, curve in enumerate(report.swept.curves):
        assert text.count(f'"line thin dash1 c{index}"') == len(drawn)
        assert text.count(f"{curve.name}, {curve.knee:g}/s: ") == len(drawn)


def test_the_page_of_conversations_has_turns_and_loads() -> None:
    text = render(talked())
    for key in ("turns-ttft", "turns-cache", "loads-requests", "loads-kv-tokens", "curve-tpot"):
        assert f'id="{key}-t"' in text, key
    assert "turns-ttft" not in render(single())


def test_over_runs_knows_numbers_only_and_counts_are_summed() -> None:
    runs = [{"completed": n, "x": float(n), "word": "cpu", "none": None, "odd": n} for n in (1, 3)]
    del runs[1]["odd"]
    assert set(over_runs(runs)) == {"completed", "x"}
    runs[1]["odd"] = None
    assert joined(runs) == {"completed": 4, "x": 2.0, "word": "cpu", "none": None, "odd": 1}


def test_arrivals_of_all_rates_are_the_same_but_for_the_rate() -> None:
    work = Workload("w", (Item("a", 1), Item("b", 1, arrival_s=3.0)), ("said",))
    fast = at_rate(work, 6.0)
    assert [item.arrival_s for item in fast] == [0.0, 0.5] and fast.remarks == ("said",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"slo": Slo()}, "--slo-ttft-ms, --slo-tpot-ms or both"),
        ({"source": Source(rate=2.0)}, "--sweep says the rates"),
        ({"source": Source(speedup=2.0)}, "--sweep says the rates"),
        ({"sweep": None, "runs": 0}, "--runs must be at least 1"),
        ({"sweep": None, "runs": 2, "arms": (Arm.parse("a"), Arm.parse("b"))}, "--rounds"),
    ],
)
def test_options_that_do_not_go_together(change: dict[str, Any], says: str) -> None:
    from dataclasses import replace

    with pytest.raises(BenchError, match=says):
        run(OneByOne(), replace(settings(1, 2), **change))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sweep": "fast"}, "LOW:HIGH in requests/s, as 0.5:16, not 'fast'"),
        ({"sweep": "4:2"}, "goes up from a rate above 0"),
        ({"sweep": "1:2", "attainment": 90.0}, "--attainment is a share"),
        ({"sweep": "1:2", "knee_within": 0.0}, "a knee is told to"),
        ({"sweep": "1:2", "runs": 0}, "--runs must be"),
    ],
)
def test_a_range_that_is_none(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BenchError, match=says):
        Repeated(**options).range()
    assert Repeated().range() is None
    assert Repeated(sweep="0.5:16").range() == Range(0.5, 16.0, 3)
