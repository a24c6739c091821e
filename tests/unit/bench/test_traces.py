"""Trace parsers and the prompts made from them, on small hand-written samples."""

import gzip
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench import arrivals, traces
from toolkit.bench.build import fit
from toolkit.bench.errors import BenchError
from toolkit.bench.mix import draw, parse_mix
from toolkit.bench.source import Source
from toolkit.bench.synthetic import TokenPool
from toolkit.bench.target import SPARE
from toolkit.bench.workload import Item, Workload

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:05.0000000,110,27
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 1500, "output_length": 40, "hash_ids": [0, 1, 7]}
{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [9, 1]}
"""
POOL = TokenPool(tuple(range(100, 7000)))


def test_azure_rows_keep_lengths_and_gaps() -> None:
    rows = traces.parse(AZURE)
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [
        (4808, 10),
        (3180, 8),
        (110, 27),
    ]
    times = arrivals.from_trace([row.stamp_s or 0.0 for row in rows], speedup=2.0)
    assert times == pytest.approx([0.0, 0.026, 0.51002], abs=1e-6)


def test_mooncake_rows_keep_blocks_and_seconds() -> None:
    rows = traces.parse(MOONCAKE)
    assert [row.stamp_s for row in rows] == [0.0, 0.0, 3.0]
    assert rows[1].hash_ids == (0, 1, 7)


def test_lengths_only_rows_have_no_time() -> None:
    rows = traces.parse("num_prefill_tokens,num_decode_tokens,pd_ratio\n3772,54,69.8\n")
    assert rows == [traces.TraceRow(3772, 54)]


def test_a_gzipped_file_is_read_and_limited(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode()))
    assert len(traces.load(path, limit=2)) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "unknown columns a, b"),
        ('{"timestamp": 0}\n', "trace:1"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "block": 0}\n', "trace:1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "trace:2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
        ("num_prefill_tokens,num_decode_tokens\n5,1\n-5,1\n", "trace:3: -5 tokens"),
        ("num_prefill_tokens,num_decode_tokens\n5,99999999\n", "trace:2: 99999999 tokens"),
    ],
)
def test_a_broken_trace_is_refused_by_line(text: str, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        traces.parse(text)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode())[:-20])
    with pytest.raises(BenchError, match="cannot read the trace"):
        traces.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BenchError, match="cannot read the trace"):
        traces.load(path)


def test_prompts_share_exactly_the_blocks_that_the_trace_shares() -> None:
    rows = traces.parse(MOONCAKE)
    first, second, third = (POOL.prompt(row, index, seed=0) for index, row in enumerate(rows))
    assert [len(first), len(second), len(third)] == [1100, 1500, 600]
    assert first[:1024] == second[:1024]
    assert first[1024:1028] != second[1024:1028]
    assert third[0] != first[0] or third[:4] != first[:4]


def test_scaling_keeps_shared_prefixes() -> None:
    rows = [traces.scale(row, 0.25, None, 8) for row in traces.parse(MOONCAKE)]
    first, second = (POOL.prompt(row, index, 0) for index, row in enumerate(rows[:2]))
    assert (len(first), rows[0].output_tokens, rows[0].block) == (275, 8, 128)
    assert first[:256] == second[:256]
    assert first[256:260] != second[256:260]


def test_rows_without_blocks_share_nothing() -> None:
    row = traces.TraceRow(64, 4)
    assert POOL.prompt(row, 1, 0)[:4] != POOL.prompt(row, 2, 0)[:4]
    assert POOL.prompt(row, 1, 0) == POOL.prompt(row, 1, 0)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**5)), min_size=1),
    context=st.integers(SPARE + 2, 10**5),
    scale=st.sampled_from([None, 0.1, 1.0, 3.0]),
)
def test_every_fitted_row_fits_the_context(
    lengths: list[tuple[int, int]], context: int, scale: float | None
) -> None:
    rows = [traces.TraceRow(given, made) for given, made in lengths]
    for row in fit(rows, Source(scale=scale), context):
        assert row.input_tokens >= 1
        assert row.output_tokens >= 1
        assert row.input_tokens + row.output_tokens <= context - SPARE


@given(st.floats(0.1, 1e4), st.integers(1, 200), st.integers(0, 2**32))
def test_poisson_arrivals_are_sorted_and_follow_the_seed(rate: float, n: int, seed: int) -> None:
    times = arrivals.poisson(rate, n, seed)
    assert times == arrivals.poisson(rate, n, seed)
    assert times == sorted(times)
    assert times[0] == 0.0
    assert len(times) == n
    if n > 1:
        assert times != arrivals.poisson(rate, n, seed + 1)


def test_poisson_arrivals_have_the_rate_and_its_variance() -> None:
    times = arrivals.poisson(20.0, 20_000, seed=3)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 20, rel=0.05)
    assert variance == pytest.approx(mean**2, rel=0.1)


def test_a_grid_is_spread_inside_its_steps_and_nothing_else_is() -> None:
    grid = [0.0] * 5 + [3.0] * 5 + [9.0] * 2
    spread = arrivals.spread_grid(grid, seed=1)
    assert [int(time // 3) for time in spread] == [0] * 5 + [1] * 5 + [3] * 2
    assert len(set(spread)) == len(spread)
    distinct = [0.0, 0.4, 0.5, 2.0]
    assert arrivals.spread_grid(distinct, seed=1) == distinct


@dataclass(frozen=True)
class Row:
    domain: str
    language: str
    text: str


PROMPTS = [Row(d, v, f"{d} {v} {n}") for d in ("code", "law") for v in ("en", "zh") for n in "123"]


def test_a_mix_draws_what_was_asked_for_and_repeats_late() -> None:
    domains = parse_mix("code:3,law", ["code", "law"], "domain")
    items = draw(PROMPTS, domains, {"en": 1.0}, count=400, output_tokens=4, seed=5)
    assert {item.language for item in items} == {"en"}
    share = sum(item.domain == "code" for item in items) / len(items)
    assert 0.68 < share < 0.82
    first = [item.prompt for item in items if item.domain == "law"][:3]
    assert len(set(first)) == 3
    assert items == draw(PROMPTS, domains, {"en": 1.0}, count=400, output_tokens=4, seed=5)


@pytest.mark.parametrize("text", ["poetry", "code:0", "code:x", "code:-1"])
def test_a_wrong_mix_is_refused(text: str) -> None:
    with pytest.raises(BenchError):
        parse_mix(text, ["code", "law"], "domain")


def test_the_digest_sees_prompts_lengths_and_arrivals() -> None:
    items = [
        Item("a", 1),
        Item("b", 1),
        Item("a", 2),
        Item("a", 1, arrival_s=0.5),
        Item((97,), 1),
    ]
    digests = {Workload("w", (item,)).digest for item in items}
    assert len(digests) == len(items)
    assert Workload("other name", (items[0],)).digest in digests


def test_rounds_are_equal_parts_that_start_at_once() -> None:
    items = tuple(Item("x", 1, arrival_s=float(n)) for n in range(11))
    rounds = Workload("w", items).rounds(3)
    assert [[item.arrival_s for item in part] for part in rounds] == [[0.0, 1.0, 2.0]] * 3
    with pytest.raises(ValueError, match="cannot fill"):
        Workload("w", items).rounds(12)
