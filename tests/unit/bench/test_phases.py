"""Workloads whose mix changes in mid-run: what is sent, when, and how rounds share it."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.bench.build import build
from toolkit.bench.errors import BenchError
from toolkit.bench.phases import TrafficPhase
from toolkit.bench.source import Source
from toolkit.bench.target import Target
from toolkit.bench.workload import Item, Workload

TARGET = Target("http://x", "m", 4096, None)


def test_a_phase_is_written_as_keys_and_values() -> None:
    text = "requests=200  languages=en:1,zh:1 max_tokens=16 rate=2.5"
    assert TrafficPhase.parse(text) == TrafficPhase(200, "all", "en:1,zh:1", 16, 2.5)
    assert TrafficPhase.parse("domains=code requests=3").mix == "domains=code languages=all"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("languages=en", "how many: requests=200"),
        ("requests=0", "at least 1"),
        ("requests=5 max_tokens=0", "at least 1"),
        ("requests=5 rate=0", "above 0"),
        ("requests=5 rate=nan", "above 0"),
        ("requests=many", "no number"),
        ("requests=5 language=en", "one of requests, domains, languages, max_tokens, rate"),
        ("requests=5 en", "not KEY=VALUE"),
    ],
)
def test_a_wrong_phase_is_refused_in_plain_words(text: str, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        TrafficPhase.parse(text)


DRIFT = Source(
    max_tokens=8,
    phases=(
        TrafficPhase(60, languages="en:1,zh:1"),
        TrafficPhase(80, domains="code,legal:3", max_tokens=5),
        TrafficPhase(60, languages="en:1,zh:1"),
    ),
)


def test_the_mix_switches_and_no_prompt_returns_before_its_cell_is_used_up() -> None:
    items = build(DRIFT, TARGET, open_loop=False).items
    assert [item.phase for item in items] == [0] * 60 + [1] * 80 + [2] * 60
    assert {item.language for item in items[:60]} == {"en", "zh"}
    assert {item.domain for item in items[60:140]} == {"code", "legal"}
    assert {item.output_tokens for item in items[60:140]} == {5}
    assert {item.output_tokens for item in items[:60]} == {8}
    cells: dict[str, Counter[str]] = {}
    for item in items:
        assert isinstance(item.prompt, str)
        cells.setdefault(item.label("cell"), Counter())[item.prompt] += 1
    for used in cells.values():
        assert max(used.values()) - min(used.values()) <= 1
    assert build(DRIFT, TARGET, open_loop=False).digest == Workload("", items).digest


def test_without_phases_nothing_has_changed() -> None:
    whole = build(Source(num_requests=40, seed=3), TARGET, open_loop=False)
    phased = build(Source(seed=3, phases=(TrafficPhase(40),)), TARGET, open_loop=False)
    assert whole.digest == phased.digest
    assert {item.phase for item in whole} == {0}


def test_phases_arrive_one_after_the_other_each_at_its_rate() -> None:
    source = Source(
        rate=5.0, phases=(TrafficPhase(400), TrafficPhase(800, domains="code", rate=50.0))
    )
    times = [item.arrival_s for item in build(source, TARGET, open_loop=True)]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[400] == pytest.approx(80, rel=0.2)
    assert times[-1] - times[400] == pytest.approx(16, rel=0.2)
    with pytest.raises(BenchError, match="rate= in every --phase"):
        build(Source(phases=(TrafficPhase(4), TrafficPhase(4, rate=1.0))), TARGET, open_loop=True)


def test_a_trace_has_no_phases(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no domains"):
        build(Source(trace=tmp_path / "t.csv", phases=(TrafficPhase(4),)), TARGET, open_loop=False)


@settings(deadline=None)
@given(
    st.lists(st.integers(3, 30), min_size=1, max_size=4), st.integers(1, 3), st.floats(0.1, 100.0)
)
def test_every_round_goes_through_all_phases_and_no_request_is_in_two(
    sizes: list[int], count: int, gap: float
) -> None:
    items: list[Item] = []
    for phase, size in enumerate(sizes):
        for _ in range(size):
            items.append(Item(f"p{len(items)}", 1, arrival_s=gap * len(items), phase=phase))
    rounds = Workload("w", tuple(items)).rounds(count)
    for each in rounds:
        phases = [item.phase for item in each]
        assert Counter(phases) == {phase: size // count for phase, size in enumerate(sizes)}
        assert phases == sorted(phases)
        times = [item.arrival_s for item in each]
        assert times[0] == 0.0
        if all(size // count > 1 for size in sizes):
            gaps = [after - before for before, after in pairwise(times)]
            assert gaps == pytest.approx([gap] * len(gaps))
    prompts = [item.prompt for each in rounds for item in each]
    assert len(set(prompts)) == len(prompts)


def test_a_phase_too_small_for_the_rounds_is_an_error() -> None:
    items = [Item("a", 1)] * 10 + [Item("b", 1, phase=1)] * 2
    with pytest.raises(ValueError, match="2 requests cannot fill 3 rounds"):
        Workload("w", tuple(items)).rounds(3)


def test_labels() -> None:
    item = Item("a", 1, domain="code", language="en")
    assert [item.label(kind) for kind in (None, "domain", "language", "cell")] == [
        "",
        "code",
        "en",
        "code/en",
    ]
    assert Item("a", 1, domain="trace").label("cell") == ""
