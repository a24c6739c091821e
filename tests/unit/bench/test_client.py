"""The stream timer on raw bytes, cut anywhere; request bodies; what counts as a lost request."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench.client import Sample, StreamTimer, _finish, payload
from toolkit.bench.errors import BenchError
from toolkit.bench.runner import RunOutcome, check
from toolkit.bench.watch import lost_between, requests_per_worker, unhealthy
from toolkit.bench.workload import Item


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def generate(tokens: int, text: str = "x", reason: Any = None) -> bytes:
    meta = {"finish_reason": reason, "prompt_tokens": 9, "completion_tokens": tokens}
    return event({"text": text, "meta_info": {**meta, "cached_tokens": 4}})


DONE = b"data: [DONE]\n\n"
TRICKY = 'a "completion_tokens":99, "error" \n\n data: [DONE] é'


def timed(chunks: list[tuple[float, bytes]]) -> tuple[Sample, StreamTimer]:
    sample = Sample(start_time=0.0)
    timer = StreamTimer(sample)
    for now, data in chunks:
        timer.feed(data, now)
    sample.latency = chunks[-1][0]
    _finish(sample, timer)
    return sample, timer


def test_tokens_are_timed_and_shared_chunks_are_split_evenly() -> None:
    chunks = [(0.5, generate(1)), (0.6, generate(2)), (0.9, generate(5) + DONE)]
    sample, _ = timed(chunks)
    assert sample.success
    assert sample.ttft == pytest.approx(0.5)
    assert sample.itl == pytest.approx([0.1, 0.1, 0.1, 0.1])
    # The gap before three tokens at once is what a reader waited.
    assert (sample.ttst, sample.longest_gap) == (pytest.approx(0.6), pytest.approx(0.3))  # type: ignore[comparison-overlap]
    assert (sample.output_len, sample.prompt_len, sample.cached_tokens) == (5, 9, 4)


@given(st.lists(st.integers(1, 400), max_size=30), st.integers(1, 6))
def test_bytes_may_be_cut_anywhere(cuts: list[int], tokens: int) -> None:
    stream = b"".join(generate(n + 1, TRICKY) for n in range(tokens)) + DONE
    chunks, at = [], 0
    for size in cuts:
        chunks.append((1.0, stream[at : at + size]))
        at += size
    sample, timer = timed([*chunks, (2.0, stream[at:])])
    assert sample.success, sample.error
    assert sample.output_len == tokens
    assert timer.final()["text"] == TRICKY


def test_chat_usage_chunks_give_counts() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    first = {"choices": [{"delta": {"content": "a"}}], "usage": usage}
    last = {
        "choices": [],
        "usage": {**usage, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
    }
    sample, _ = timed([(0.1, event(first)), (0.4, event(last)), (0.5, DONE)])
    assert (sample.output_len, sample.prompt_len, sample.cached_tokens) == (2, 7, 3)
    assert sample.itl == pytest.approx([0.3])
    assert (sample.ttst, sample.longest_gap) == (pytest.approx(0.4), pytest.approx(0.3))  # type: ignore[comparison-overlap]


def test_a_second_token_that_comes_with_the_first_is_there_then() -> None:
    sample, _ = timed([(0.5, generate(3)), (0.7, generate(4) + DONE)])
    assert (sample.ttft, sample.ttst) == (pytest.approx(0.5), pytest.approx(0.5))  # type: ignore[comparison-overlap]
    alone, _ = timed([(0.5, generate(1) + DONE)])
    assert (alone.ttst, alone.longest_gap) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        ([(0.1, generate(1)), (0.2, generate(2))], "broke off after 2"),
        ([(0.1, DONE)], "no tokens"),
        ([(0.1, generate(1)), (0.2, event({"error": {"message": "boom"}}) + DONE)], "boom"),
        ([(0.1, generate(3, reason={"type": "abort", "message": "gone"}) + DONE)], "gone"),
    ],
)
def test_a_bad_stream_is_a_lost_request(chunks: list[tuple[float, bytes]], says: str) -> None:
    sample, _ = timed(chunks)
    assert not sample.success
    assert says in sample.error


def test_bodies_carry_ids_where_they_can() -> None:
    item = Item((5, 6), 3)
    assert payload("generate", "m", item, True)["input_ids"] == (5, 6)
    assert payload("completions", "m", item, True)["prompt"] == (5, 6)
    with pytest.raises(ValueError, match="text"):
        payload("chat", "m", item, True)
    chat = payload("chat", "m", Item("hello", 3), False)
    assert chat["messages"] == [{"role": "user", "content": "hello"}]
    assert (chat["max_tokens"], chat["ignore_eos"]) == (3, False)


def outcome(samples: list[Sample], faults: list[str] | None = None) -> RunOutcome:
    return RunOutcome(samples, 1.0, 0.0, None, None, faults or [])


GOOD = Sample(success=True, output_len=4)


def test_a_whole_run_passes() -> None:
    check(outcome([GOOD, GOOD]), expected=2)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (outcome([GOOD, Sample(error="HTTP 503: no worker")]), r"1 of 2 requests.*\n.*503"),
        (outcome([GOOD]), "1 of 2 requests"),
        (outcome([Sample(success=True), Sample(success=True)]), "no tokens"),
        (outcome([GOOD, GOOD], ["worker decode-0 failed 2 request(s)"]), "decode-0 failed 2"),
    ],
)
def test_lost_work_is_an_error(result: RunOutcome, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        check(result, expected=2)


def worker(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "healthy": True, "completed": 0, "failed": 0, "dp_rank": 0, **more}


def test_workers_lost_between_snapshots_are_named() -> None:
    before = {"workers": [worker("p"), worker("d0"), worker("d1")], "resumed": 1}
    after = {
        "workers": [worker("p", healthy=False), worker("d0", failed=2, completed=5)],
        "resumed": 4,
    }
    assert unhealthy(after, "after the run") == ["worker p was unhealthy after the run"]
    faults = "\n".join(lost_between(before, after))
    assert "d1 disappeared" in faults
    assert "d0 failed 2" in faults
    assert "3 request(s) had to be resumed" in faults
    assert lost_between(before, before) == []


def test_requests_are_counted_per_rank() -> None:
    before = {"workers": [worker("d", completed=3), worker("d", dp_rank=1, completed=1)]}
    after = {"workers": [worker("d", completed=5), worker("d", dp_rank=1, completed=8)]}
    assert requests_per_worker(before, after) == {"d": 2, "d/1": 7}
    assert requests_per_worker(None, after) is None
