"""`--ls-share`: who is latency-sensitive, what the server is told, and figures by class."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.kernels import examples
from tests.unit.bench.pages import by_class as report_by_class
from tests.unit.bench.test_compare import text_of
from tests.unit.bench.test_conversations import spoken
from tests.unit.bench.test_prompts import TARGET, saved
from tests.unit.bench.test_sweep import OneByOne, run
from tests.unit.html_page import Page
from toolkit.bench import class_ratios
from toolkit.bench.build import build
from toolkit.bench.classes import drawn
from toolkit.bench.client import Sample
from toolkit.bench.compare import Arm, Comparison
from toolkit.bench.errors import BenchError
from toolkit.bench.groups import by_class, by_name
from toolkit.bench.metrics import Slo, summarise
from toolkit.bench.page import render
from toolkit.bench.phases import TrafficPhase
from toolkit.bench.ratios import class_tables
from toolkit.bench.report import group_tables
from toolkit.bench.runner import BenchLoad
from toolkit.bench.session import Settings
from toolkit.bench.several import joined_groups
from toolkit.bench.source import Source
from toolkit.bench.swept import Range
from toolkit.bench.workload import Item, Workload
from toolkit.cli.main import app

URGENT, OTHER = "latency_sensitive", "best_effort"
SHARES = st.floats(0, 1)
SEEDS = st.integers(0, 2**31)


def plain(count: int) -> Workload:
    return Workload("w", tuple(Item(f"p{n}", 1, arrival_s=float(n)) for n in range(count)))


def kinds(workload: Workload) -> list[str]:
    return [item.kind for item in workload]


def bare(workload: Workload) -> Workload:
    """Without what a draw may change."""
    return replace(workload, items=tuple(replace(item, kind="") for item in workload), remarks=())


@given(SHARES, SEEDS, st.integers(1, 300))
def test_a_draw_is_the_seeds_and_keeps_to_its_share(share: float, seed: int, count: int) -> None:
    work = drawn(plain(count), share, seed)
    assert set(kinds(work)) <= {URGENT, OTHER}
    assert kinds(work) == kinds(drawn(plain(count), share, seed))
    assert bare(work) == plain(count) and work.digest == plain(count).digest
    # Six standard deviations, and room for the few that a small share gives.
    bound = 6 * math.sqrt(count * share * (1 - share)) + 6 * (0 < share < 1)
    assert abs(kinds(work).count(URGENT) - count * share) <= bound
    # More requests or a larger share change nobody's class but to latency-sensitive.
    assert kinds(drawn(plain(count + 5), share, seed))[:count] == kinds(work)
    more = kinds(drawn(plain(count), min(1.0, share + 0.1), seed))
    assert all(new == URGENT for new, old in zip(more, kinds(work), strict=True) if old == URGENT)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_over_many_seeds_the_share_is_what_was_asked_for(share: float) -> None:
    found = [kinds(drawn(plain(100), share, seed)) for seed in range(200)]
    urgent = sum(each.count(URGENT) for each in found)
    assert abs(urgent / 20_000 - share) < 5 * math.sqrt(share * (1 - share) / 20_000)
    assert len({tuple(each) for each in found}) > 190, "each seed draws its own"


TALK = [spoken(*(f"{n}.{part}" for part in range(2 * (n % 3) + 1))) for n in range(30)]
SOURCES: dict[str, dict[str, Any]] = {
    "prompts": {"num_requests": 40, "rate": 3.0},
    "phases": {
        "phases": (TrafficPhase(9, languages="en"), TrafficPhase(8, domains="code")),
        "rate": 2.0,
    },
    "trace": {"trace": "lengths.csv", "num_requests": 40, "rate": 5.0},
    "file": {"prompts": "talk.jsonl", "chat": True, "rate": 5.0},
    "talk": {"prompts": "talk.jsonl", "chat": True, "turns": "recorded", "think_s": 1.0,
             "rate": 3.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("classes")
    saved(made, "talk.jsonl", *TALK)
    rows = "\n".join(f"{20 + n},{3 + n % 4},1" for n in range(40))
    (made / "lengths.csv").write_text(f"num_prefill_tokens,num_decode_tokens,pd_ratio\n{rows}\n")
    return made


def test_a_trace_may_have_classes_of_its_own(tmp_path: Path) -> None:
    rows = "9,2,best_effort\n9,3,\n9,4,latency_sensitive\n"
    path = tmp_path / "classed.csv"
    path.write_text(f"num_prefill_tokens,num_decode_tokens,class\n{rows}")
    source = Source(trace=path, rate=5.0)
    assert kinds(build(source, TARGET, open_loop=True)) == [OTHER, "", URGENT]
    with pytest.raises(BenchError, match=r"has classes, and --ls-share"):
        build(replace(source, ls_share=0.2), TARGET, open_loop=True)


@pytest.mark.parametrize("name", SOURCES)
@hypothesis_settings(max_examples=examples(5), deadline=None)
@given(share=SHARES, seed=SEEDS)
def test_nothing_else_of_a_workload_changes(
    folder: Path, name: str, share: float, seed: int
) -> None:
    more = {k: folder / v if k in ("prompts", "trace") else v for k, v in SOURCES[name].items()}
    before = build(Source(seed=seed, **more), TARGET, open_loop=True)
    after = build(Source(seed=seed, ls_share=share, **more), TARGET, open_loop=True)
    assert set(kinds(before)) == {""} and set(kinds(after)) <= {URGENT, OTHER}
    assert bare(after) == bare(before) and after.digest == before.digest


def test_all_turns_of_a_conversation_have_one_class(folder: Path) -> None:
    source = Source(
        prompts=folder / "talk.jsonl", chat=True, turns="recorded", num_requests=60, ls_share=0.5
    )
    chains = build(source, TARGET, open_loop=False).chains()
    found = [{item.kind for item in chain} for chain in chains]
    assert all(len(each) == 1 for each in found)
    assert {kind for chain in chains if len(chain) > 1 for kind in kinds(Workload("", chain))} == {
        URGENT,
        OTHER,
    }


def test_a_draw_that_makes_one_class_of_all_says_so() -> None:
    (remark,) = drawn(plain(2), 1e-9, 0).remarks
    assert remark.startswith("--ls-share 1e-09 made all 2 requests best_effort, by chance")
    assert drawn(plain(2), 0.0, 0).remarks == drawn(plain(2), 1.0, 0).remarks == ()


@pytest.mark.parametrize("share", [-0.1, 1.01, 20, math.nan, math.inf])
def test_what_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(BenchError, match=r"--ls-share is a share from 0 to 1, as 0\.2, not"):
        Source(ls_share=share)
    done = CliRunner().invoke(app, ["bench", "--url", "http://x:1", "--ls-share", str(share)])
    assert done.exit_code == 1 and "--ls-share is a share from 0 to 1" in done.output


def test_rows_that_have_a_class_are_not_drawn_again(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.jsonl", {"prompt": "a"}, {"prompt": "b", "class": "batch"})
    says = r'a.jsonl:2: its class is "batch" \(1 of 2 .*leave --ls-share out, or "class" out of all'
    with pytest.raises(BenchError, match=says):
        build(Source(prompts=path, ls_share=0.5), TARGET, open_loop=False)
    first = build(Source(prompts=path, ls_share=0.5, num_requests=1), TARGET, open_loop=False)
    assert len(first) == 1, "the second row is not played"
    assert kinds(build(Source(prompts=path), TARGET, open_loop=False)) == ["", "batch"]


TIMES = {("first", URGENT): 0.02, ("first", OTHER): 0.06}
"""Seconds that a request takes; OTHERWISE where it is not here."""
OTHERWISE = 0.03
SLO_S = 0.05


class LatencySensitive(OneByOne):
    """Serves each request after a time that policy and class decide, and notes classes."""

    def __init__(self) -> None:
        super().__init__()
        self.classes: list[str | None] = []

    async def generate(self, request: web.Request) -> web.StreamResponse:
        kind = request.headers.get("x-toolkit-class")
        self.classes.append(kind)
        await asyncio.sleep(TIMES.get((self.policies["decode"], str(kind)), OTHERWISE))
        line = b'data: {"text":"x","meta_info":{"prompt_tokens":5,"completion_tokens":1}}\n\n'
        return web.Response(body=line + b"data: [DONE]\n\n")


def options(requests: int = 24, **more: Any) -> Settings:
    source = Source(num_requests=requests, max_tokens=1, ls_share=0.4, **more.pop("source", {}))
    slo = Slo(ttft_ms=1e3 * SLO_S)
    return Settings(source, BenchLoad(concurrency=8), slo, **({"warmup": 0} | more))


def test_a_server_is_told_the_class_of_every_request_and_the_report_too() -> None:
    server = LatencySensitive()
    report = run(server, options())
    want = kinds(build(options().source, TARGET, open_loop=False))
    assert sorted(map(str, server.classes)) == sorted(want)
    classes = report.groups["class"]
    assert list(report.groups) == ["class"], "the project's domains are not told one by one"
    assert report.document["groups"] == report.groups
    assert {name: each["completed"] for name, each in classes.items()} == {
        name: want.count(name) for name in (URGENT, OTHER)
    }
    assert report.document["source"]["ls_share"] == 0.4


@pytest.mark.parametrize("kind", [URGENT, "standard", OTHER, "batch", ""])
def test_only_words_that_a_router_knows_are_sent(tmp_path: Path, kind: str) -> None:
    row = {"prompt": "a"} | ({"class": kind} if kind else {})
    server = LatencySensitive()
    path = saved(tmp_path, "a.jsonl", row)
    run(server, Settings(Source(prompts=path), BenchLoad(), Slo(), warmup=1))
    assert server.classes == [kind if kind in (URGENT, "standard", OTHER) else None] * 2


def test_a_comparison_has_ratios_by_class() -> None:
    server = LatencySensitive()
    arms = (Arm.parse("first"), Arm.parse("second"))
    report = run(server, options(60, arms=arms, rounds=3))
    assert report.comparison is not None
    found = report.document["comparison"]["class_ratios"]["first / second"]
    assert set(found) == {URGENT, OTHER}
    assert not any("output_throughput" in each for each in found.values()), "is the whole run's"
    for name, low, high in ((URGENT, 0.4, 0.95), (OTHER, 1.2, 2.5)):
        for key in ("mean_ttft_ms", "mean_e2e_latency_ms"):
            each = found[name][key]
            assert low < each["value"] < high, (name, key)
            assert each["low"] < each["value"] < each["high"] and each["pairs"] == 3
    assert "slo_attainment" in found[URGENT] and "slo_attainment" not in found[OTHER]
    assert any("class best_effort: in some round no request kept" in r for r in report.remarks)
    rounds = report.document["comparison"]["rounds"]["first"]
    assert all(each["classes"][OTHER]["slo_attainment"] == 0 for each in rounds)


def test_each_run_of_a_sweep_has_its_classes() -> None:
    asked = Range(200.0, 400.0, runs=2, within=1.0)
    report = run(
        LatencySensitive(), replace(options(), load=BenchLoad(open_loop=True), sweep=asked)
    )
    assert report.swept is not None
    for point in report.swept.curves[0].points:
        for seed, each in enumerate(point.runs):
            want = kinds(build(replace(options().source, seed=seed), TARGET, open_loop=False))
            assert {name: one["completed"] for name, one in each["classes"].items()} == {
                name: want.count(name) for name in (URGENT, OTHER)
            }
            assert each["classes"][URGENT]["slo_attainment"] is not None


def sample(ms: float, good: bool = True) -> Sample:
    return Sample(
        success=good, ttft=ms / 1e3, latency=3 * ms / 1e3, itl=[ms / 1e3] * 2, output_len=3
    )


def classed(*named: str) -> Workload:
    return Workload("w", tuple(Item("a", 3, kind=kind) for kind in named))


def test_a_class_has_every_figure_of_the_whole_and_its_share_within_the_slo() -> None:
    work = classed(URGENT, OTHER, OTHER, OTHER, URGENT)
    samples = [sample(10), sample(50), sample(10), sample(1, good=False), sample(20)]
    slo = Slo(ttft_ms=20.0)
    whole = summarise(samples, 2.0, slo)
    for found in (by_name(work, samples, 2.0, slo)["class"], by_class(work, samples, 2.0, slo)):
        assert set(found) == {URGENT, OTHER}
        for each in found.values():
            assert set(each) == {*whole, "slo_attainment"}
        assert found[URGENT]["slo_attainment"] == 1
        assert found[OTHER]["slo_attainment"] == pytest.approx(1 / 3), "the failed one counts"
        assert found[URGENT]["mean_ttft_ms"] == pytest.approx(15)
        for key in ("output_throughput", "request_throughput", "completed", "failed"):
            assert found[URGENT][key] + found[OTHER][key] == pytest.approx(whole[key])
    assert by_class(work, samples, 2.0)[OTHER]["slo_attainment"] is None
    assert list(by_class(classed(OTHER), samples[:1], 2.0)) == [OTHER]
    assert by_class(classed("", ""), samples[:2], 2.0) == {}


def test_tables_of_classes_have_all_statistics() -> None:
    work = classed(URGENT, OTHER, "")
    samples = [sample(10), sample(50), sample(1, good=False)]
    groups = by_name(work, samples, 2.0, Slo(ttft_ms=20.0))
    (table,) = group_tables(groups)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    rows = {row[0]: dict(zip([str(c.header) for c in table.columns], row, strict=True))
            for row in zip(*cells, strict=True)}  # fmt: skip
    for series in ("TTFT", "TPOT", "E2E"):
        assert {f"{series} {stat}" for stat in ("mean", "p50", "p90", "p99")} <= set(rows[OTHER])
    assert rows[OTHER]["E2E p99"] == "150.0" and rows[OTHER]["tokens/s"] == "1.5"
    assert [rows[name]["within the SLO, %"] for name in (URGENT, OTHER, "none")] == [
        "100", "0", "0"
    ]  # fmt: skip
    assert rows["none"]["TTFT p50"] == "-", "nobody's time is not 0 ms"
    (plain_table,) = group_tables(by_name(work, samples, 2.0))
    assert "within the SLO, %" not in [str(column.header) for column in plain_table.columns]


def test_several_runs_have_one_table_of_their_means() -> None:
    runs = [
        by_name(classed(URGENT, OTHER), [sample(ms), sample(3 * ms)], 2.0) for ms in (10.0, 20.0)
    ]
    runs[1]["class"]["odd"] = runs[1]["class"][OTHER]
    found = joined_groups(runs)
    assert set(found["class"]) == {URGENT, OTHER}
    assert found["class"][OTHER]["mean_ttft_ms"] == pytest.approx(45)
    assert found["class"][OTHER]["completed"] == 2
    report = run(LatencySensitive(), options(runs=2))
    assert sum(each["completed"] for each in report.groups["class"].values()) == 48
    assert len(report.document["groups"]) == 2, "of each run in the file"
    assert "by class (ms), means of 2 runs" in text_of(*group_tables(report.groups, 2))


def rounds(*figures: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    return [{"classes": each} for each in figures]


def test_ratios_are_paired_by_rounds_and_need_every_round() -> None:
    ours = rounds({"a": {"mean_ttft_ms": 1.0, "slo_attainment": 0.5}, "b": {"mean_ttft_ms": 1.0}},
                  {"a": {"mean_ttft_ms": 4.0, "slo_attainment": 0.0}})  # fmt: skip
    other = rounds({"a": {"mean_ttft_ms": 2.0, "slo_attainment": 0.5}, "b": {"mean_ttft_ms": 1.0}},
                   {"a": {"mean_ttft_ms": 8.0, "slo_attainment": 0.5}})  # fmt: skip
    found = class_ratios.class_ratios(ours, other)
    ratio = found["a"]["mean_ttft_ms"]
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5))
    assert ratio.pairs == 2
    assert set(found["a"]) == {"mean_ttft_ms"} and found["b"] == {}
    comparison = Comparison([Arm.parse("x"), Arm.parse("y")], [ours, other])
    first, second = class_ratios.doubts(comparison.rounds)
    assert first.startswith("class a: in some round no request kept to the SLO")
    assert second.startswith("class b: 1 of 2 rounds have no such request")
    assert class_ratios.median(ours, "a", "mean_ttft_ms") == 2.5
    assert class_ratios.median(ours, "b", "mean_ttft_ms") is None
    assert class_ratios.class_ratios([{}], [{}]) == {}


def test_a_comparisons_table_by_class() -> None:
    report = report_by_class()
    comparison = report.comparison
    assert comparison is not None
    text = text_of(*class_tables(comparison))
    for words in (URGENT, OTHER, "TTFT mean, ms", "E2E mean, ms", "within the SLO, %"):
        assert words in text
    assert "1.500 (1.500-1.500) *" in text and "6 paired rounds" in text
    words = " ".join(Page(render(report)).words).replace("\u00a0", " ")
    assert "By class" in words and "E2E mean, ms" in words and "1.500 (1.500-1.500) *" in words
    assert "class best_effort: in some round no request kept to the SLO" in words
    plain_one = Comparison([Arm.parse("x"), Arm.parse("y")], [[{}], [{}]])
    plain_one.conclude()
    assert class_tables(plain_one) == []
