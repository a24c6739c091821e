"""What a comparison says: the words follow from the intervals, the page and table from both."""

import io
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.unit.bench.pages import by_class, compared, several, single, swept, talked
from tests.unit.html_page import Page
from toolkit.bench.errors import BenchError
from toolkit.bench.page import ready, render, write
from toolkit.bench.progress import ComparisonProgress
from toolkit.bench.ratios import verdict_table
from toolkit.bench.stats import Ratio, paired_ratio
from toolkit.bench.verdict import METRICS, BenchFinding, findings, shown
from toolkit.report.terminal import show

BY_KEY = {metric.key: metric for metric in METRICS}


def finding(key: str, low: float, high: float) -> BenchFinding:
    middle = (low * high) ** 0.5
    return BenchFinding(BY_KEY[key], 1.0, 1.0, Ratio(middle, low, high, 8))


@pytest.mark.parametrize(
    ("key", "low", "high", "word", "sentence"),
    [
        ("distinct_experts", 0.8, 0.9, "gain",
         "gain: 15 % fewer distinct experts a decode step (10 to 20 %)"),
        ("median_ttft_ms", 1.02, 1.3, "loss",
         "loss: 15 % more time to the first token (2.0 to 30 %)"),
        ("median_ttft_ms", 0.9, 1.05, "no difference seen",
         "no difference seen: time to the first token (10 % less to 5.0 % more)"),
        ("output_throughput", 1.05, 1.1, "gain", "gain: 7.5 % more tokens a second (5.0 to 10 %)"),
        ("output_throughput", 0.8, 0.9, "loss", "loss: 15 % fewer tokens a second (10 to 20 %)"),
        ("output_throughput", float("nan"), float("nan"), "no interval", None),
    ],
)  # fmt: skip
def test_the_word_follows_from_the_interval(
    key: str, low: float, high: float, word: str, sentence: str | None
) -> None:
    found = finding(key, low, high)
    assert found.word == word
    assert sentence is None or found.sentence == sentence


@given(st.sampled_from(sorted(BY_KEY)), st.floats(0.2, 5), st.floats(0.2, 5))
def test_the_other_way_round_a_gain_is_a_loss(key: str, one: float, two: float) -> None:
    low, high = sorted((one, two))
    swapped = {"gain": "loss", "loss": "gain"}
    word = finding(key, low, high).word
    assert finding(key, 1 / high, 1 / low).word == swapped.get(word, word)


def test_no_difference_is_called_one_in_no_more_than_a_twentieth_of_cases() -> None:
    source = random.Random(3)
    called = 0
    for _ in range(1000):
        ours, other = ([source.lognormvariate(0, 0.2) for _ in range(8)] for _ in range(2))
        ratio = paired_ratio(ours, other)
        called += BenchFinding(BY_KEY["median_ttft_ms"], 1, 1, ratio).word != "no difference seen"
    assert 25 <= called <= 75


def test_a_drift_that_both_share_does_not_widen_the_interval() -> None:
    """What the pairing is for: the machine is twice as slow in the end."""
    found = {each.metric.key: each for each in findings(compared(drift=2.0).comparison)}  # type: ignore[arg-type]
    assert found["distinct_experts"].word == "gain"
    assert found["median_worker_tpot_ms"].word == "gain"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_is_whole_and_fits(width: int) -> None:
    comparison = compared().comparison
    assert comparison is not None
    console = Console(width=width, file=io.StringIO(), record=True)
    show(console, verdict_table(comparison))
    text = console.export_text()
    assert "…" not in text and text.count("eldr") == 1, "one part"
    assert max(map(len, text.splitlines())) <= width
    for each in shown(findings(comparison)):
        for number in re.findall(r"[-+]?\d[\d.]*", each.change):
            assert number in text


@pytest.mark.parametrize(("room", "lines"), [(80, 1), (40, 2), (4000, 1)])
def test_progress_cuts_nothing(room: int, lines: int) -> None:
    progress = ComparisonProgress(["eldr", "kv_shortest_queue"], 12, room)
    row = {"median_ttft_ms": 12345.678, "median_tpot_ms": 88.04, "distinct_experts": 21.44}
    first = progress.lines(0, 0, row)
    again = progress.lines(1, 11, {**row, "median_worker_tpot_ms": 7.125})
    assert len(first) == 2 and len(again) == 1
    assert [len(each.splitlines()) for each in (*first, *again)] == [lines] * 3
    for word in ("1/12", "eldr", "12345.7", "88.0", "-", "21.4"):
        assert word in first[1]
    assert "12/12 kv_shortest_queue" in again[0] and "7.12" in again[0]
    if lines == 1:
        assert len({len(each) for each in (*first, *again)}) == 1, "columns stand below each other"
        assert len(first[0]) <= 80


def test_a_long_name_moves_what_follows_and_is_not_cut() -> None:
    name = "late:gimbal@0.9:0.1+composed@eldr+br0+user"
    (_, line) = ComparisonProgress([name, "eldr"], 8, 80).lines(0, 0, {"median_ttft_ms": 1.0})
    assert name in line.splitlines()[0] and "1.0" in line.splitlines()[1]


REPORTS = {
    "comparison": compared,
    "three": lambda: compared(arms=3),
    "by class": by_class,
    "run": single,
    "talked": talked,
    "several": several,
    "swept": swept,
    "one run of three": lambda: swept(3, runs=1),
}


@pytest.mark.parametrize("kind", REPORTS)
def test_the_page_is_whole_and_of_itself(kind: str) -> None:
    text = render(REPORTS[kind]())  # type: ignore[no-untyped-call]
    page = Page(text)
    assert [name for name, count in page.ids.items() if count > 1] == []
    for tag, name, value in page.attributes:
        if name == "href":
            assert tag == "a" and page.ids[value.removeprefix("#")] == 1
    pictures = [each for each in page.svgs if each.get("class") != "sign"]
    assert len(pictures) >= 2
    assert all(page.ids[n] == 1 for each in pictures for n in each["aria-labelledby"].split())
    for sign in ("https:", "url(", "@import", "fetch(", "src="):
        assert sign not in text, sign
    words = " ".join(page.words)
    assert not re.search(r"\b(nan|inf|None)\b", words)


def test_a_comparisons_page_says_its_findings_and_names_every_policy() -> None:
    report = compared()
    words = " ".join(Page(render(report, "Mine <&>")).words).replace("\u00a0", " ")
    assert report.comparison is not None
    for each in findings(report.comparison):
        assert each.sentence in words and each.metric.title.removesuffix(", ms") in words
    assert "eldr" in words and "shortest_queue" in words and "Mine <&>" in words
    assert report.document["workload"]["hash"] in words


def test_a_page_that_cannot_be_written_is_an_error_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "page.html"):
        with pytest.raises(BenchError, match=r"cannot write the page .*name another file"):
            ready(path)
    ready(tmp_path / "new" / "page.html")
    assert not (tmp_path / "new" / "page.html").exists(), "nothing is left of the trial"
    ready(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "x", "what is there stays until the run is done"
    write(tmp_path / "new" / "page.html", single())
    assert (tmp_path / "new" / "page.html").read_text().startswith("<!DOCTYPE html>")
