"""Recorded traces and made traffic: what comes out, and what is refused with its line."""

import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench.errors import BenchError
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.request import Request
from toolkit.simulate.workloads.trace import TraceOptions, of_trace
from toolkit.simulate.workloads.traffic import (
    CONVERSATION,
    RequestKind,
    TrafficModel,
    azure_like,
    generate,
    mixed,
)

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def azure(tmp_path: Path, *rows: tuple[str, int, int]) -> Path:
    path = tmp_path / "trace.csv"
    lines = [f"2023-11-16 18:{stamp},{prompt},{answer}\n" for stamp, prompt, answer in rows]
    path.write_text(AZURE + "".join(lines))
    return path


def test_a_trace_begins_at_zero_and_keeps_its_gaps(tmp_path: Path) -> None:
    path = azure(tmp_path, ("17:03", 48, 10), ("17:05", 30, 8), ("17:09", 5, 2))
    found = list(of_trace(path, TraceOptions(speedup=2.0, prompts=2.0, longest=(70, 9))))
    assert [r.arrived for r in found] == [0.0, 1.0, 3.0]
    assert [(r.prompt, r.output) for r in found] == [(70, 9), (60, 8), (10, 2)]


def test_a_grid_is_spread_until_its_next_point(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(stamp, n) for stamp in (0, 3000, 6000, 90_000) for n in range(20)]
    path.write_text(
        "".join(
            f'{{"timestamp": {stamp}, "input_length": 9, "output_length": 2, "hash_ids": [{n}]}}\n'
            for stamp, n in rows
        )
    )
    found = [r.arrived for r in of_trace(path)]
    assert found == sorted(found) and len(set(found)) == 80
    assert 0 <= found[0] < 1 and 2 < found[19] < 3 <= found[20]
    assert found[40] >= 6 and found[59] < 9 and found[60] >= 90 and found[79] < 93


def test_blocks_are_shared_as_long_as_the_beginning_is(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = ([1, 2, 3], [1, 2, 4], [9, 2, 3])
    path.write_text(
        "".join(
            f'{{"timestamp": {n}, "input_length": 1500, "output_length": 2, "hash_ids": {ids}}}\n'
            for n, ids in enumerate(rows)
        )
    )
    first, second, third = (r.blocks for r in of_trace(path))
    assert first[:2] == second[:2] and first[2] != second[2]
    assert not set(first) & set(third)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([("17:05", 1, 1), ("17:03", 1, 1)], r"trace.csv:3: the time goes back by 2 s: sort"),
        ([("17:05", -1, 1)], r"trace.csv:2: -1 tokens"),
        ([], "no request with input"),
        ([("17:05", 0, 4)], "no request with input"),
    ],
)
def test_a_trace_that_cannot_be_played_says_why_and_where(
    tmp_path: Path, rows: Any, says: str
) -> None:
    with pytest.raises((SimulateError, BenchError), match=says):
        list(of_trace(azure(tmp_path, *rows)))


def test_lengths_without_times_need_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n" + "5,2\n" * 400)
    with pytest.raises(SimulateError, match="--rate"):
        list(of_trace(path))
    found = [r.arrived for r in of_trace(path, TraceOptions(rate=4.0))]
    assert len(found) == 400 and 80 < found[-1] < 125


def test_times_in_another_unit_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = '{{"timestamp": {}, "input_length": 9, "output_length": 2}}\n'
    path.write_text("".join(row.format(n / 20) for n in range(500)))  # seconds, not milliseconds
    with pytest.raises(SimulateError, match="--time-unit 1000"):
        list(of_trace(path))
    found = list(of_trace(path, TraceOptions(unit=1000.0)))
    assert found[-1].arrived == pytest.approx(499 / 20)


def test_holes_are_told_and_can_be_cut(tmp_path: Path) -> None:
    rows = [(f"{n // 60:02d}:{n % 60:02d}", 5, 2) for n in range(300)]
    rows += [(f"{n // 60:02d}:{n % 60:02d}", 5, 2) for n in range(900, 910)]
    path, said = azure(tmp_path, *rows), []  # type: ignore[var-annotated]
    whole = list(of_trace(path, remark=said.append))
    assert said == [f"{path}:302: a hole of 601 s"] and whole[-1].arrived == 909
    cut = list(of_trace(path, TraceOptions(longest_gap=10.0)))
    assert cut[-1].arrived == 299 + 10 + 9


KINDS = (
    RequestKind(
        name="chat",
        share=3,
        prompt=(200, 0.5),
        answer=(100, 0.5),
        turns=4,
        urgent=0.2,
        best_effort=0.5,
    ),
    RequestKind(name="code", share=1, late_share=9, prompt=(900, 0.8), answer=(20, 0.5)),
)


def shape(r: Request) -> tuple[Any, ...]:
    return (r.arrived, r.prompt, r.output, r.blocks, r.user, r.request_class)


@given(st.integers(0, 50), st.floats(0.3, 3.0))
def test_traffic_is_ordered_repeatable_and_within_its_limits(seed: int, burst: float) -> None:
    traffic = TrafficModel(
        rate=8, seconds=60, kinds=KINDS, clients=7, burst=burst, longest=(800, 90)
    )
    first, again = list(generate(traffic, seed)), list(generate(traffic, seed))
    shape = [(r.arrived, r.prompt, r.output, r.blocks, r.user, r.request_class) for r in first]
    assert shape == [
        (r.arrived, r.prompt, r.output, r.blocks, r.user, r.request_class) for r in again
    ]
    assert all(a.arrived <= b.arrived for a, b in pairwise(first))
    assert all(1 <= r.prompt <= 800 and 1 <= r.output <= 90 for r in first)
    assert [r.number for r in first] == list(range(len(first)))


def test_rates_bursts_kinds_and_drift_are_as_asked() -> None:
    traffic = TrafficModel(rate=20, seconds=2000, kinds=KINDS, clients=20)
    found = list(generate(traffic))
    assert len(found) == pytest.approx(40_000, rel=0.05)
    chat = [r for r in found if r.label == "chat"]
    for kind, share in (("latency_sensitive", 0.2), ("best_effort", 0.5), ("standard", 0.3)):
        having = statistics.fmean(r.request_class == kind for r in chat)
        assert having == pytest.approx(share, abs=0.02)
    assert {r.request_class for r in found if r.label == "code"} == {"standard"}
    early = sum(r.label == "code" for r in found[:4000]) / 4000
    late = sum(r.label == "code" for r in found[-4000:]) / 4000
    assert early < 0.2 and late > 0.35
    users = statistics.multimode(r.user for r in found)
    assert users == ["client-0"]


def test_conversations_share_nothing() -> None:
    chat = RequestKind(
        name="chat", share=1, prompt=(600, 0.2), answer=(50, 0.2), turns=1.05, pause=1
    )
    made = list(generate(TrafficModel(rate=5, seconds=60, kinds=(chat,)), 1))
    firsts = [r.blocks[0] for r in made if r.blocks]
    # One in twenty has a second turn, which begins as its first.
    assert len(firsts) > 200 and len(set(firsts)) > 0.9 * len(firsts)


def test_later_turns_begin_with_what_was_said() -> None:
    chat = RequestKind(name="chat", share=1, prompt=(600, 0.2), answer=(300, 0.2), turns=5, pause=1)
    shared = 0
    known: set[int] = set()
    for request in generate(TrafficModel(rate=2, seconds=300, kinds=(chat,))):
        shared += bool(request.blocks) and request.blocks[0] in known
        known.update(request.blocks)
    assert shared > 200


@pytest.mark.slow
def test_a_swing_leaves_the_mean_rate() -> None:
    steady, swung = (
        TrafficModel(rate=20, seconds=1000, period=100, swing=s, kinds=(CONVERSATION,))
        for s in (0, 0.8)
    )
    counts = [len(list(generate(each))) for each in (steady, swung)]
    assert counts[1] == pytest.approx(counts[0], rel=0.05)
    busy = sum((r.arrived % 100) > 50 for r in generate(swung))
    assert busy > 0.6 * counts[1]


def test_azures_conversations_have_its_lengths() -> None:
    found = list(generate(azure_like(5.4, 3600)))
    assert len(found) == pytest.approx(19_366, rel=0.1)
    assert statistics.median(r.prompt for r in found) == pytest.approx(1020, rel=0.05)
    assert statistics.median(r.output for r in found) == pytest.approx(129, rel=0.05)


def test_labels_share_one_kind() -> None:
    kinds = mixed({"en": 3, "zh": 1}, CONVERSATION)
    found = list(generate(TrafficModel(rate=10, seconds=200, kinds=kinds)))
    assert sum(r.label == "en" for r in found) / len(found) == pytest.approx(0.75, abs=0.05)


def test_no_share_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one kind"):
        TrafficModel(rate=1, seconds=1, kinds=(CONVERSATION.model_copy(update={"share": 0.0}),))
