"""Decode batches taken from a played round: who was where, and how far."""

import pytest

from patches.steps import request_times
from tests.benchmarks.shared.eldr_batches import APART_S, batches
from tests.unit.bench.steps import decode, rank
from toolkit.bench.client import Sample
from toolkit.bench.decode import RankSteps
from toolkit.bench.errors import BenchError
from toolkit.bench.runner import RunOutcome

PROMPTS = [(1, 2, 3), (4, 5, 6), (7, 8)]


def sample(start: float, end: float, prompt: int, *ids: int) -> Sample:
    return Sample(
        success=True,
        start_time=start,
        latency=end - start,
        prompt_len=prompt,
        output_len=len(ids),
        output_ids=ids,
    )


def stay(end: float, seconds: float, prompt: int, tokens: int) -> list[float]:
    """A request's row: its first decode token came `seconds` before its last."""
    row = {"end": end, "seconds": seconds, "prompt_tokens": prompt, "output_tokens": tokens}
    return [float(row.get(name, tokens - 2)) for name in request_times.FIELDS]


def worker(name: str, *rows: list[float]) -> RankSteps:
    return rank(name, [], list(rows))


def outcome(samples: list[Sample], *ranks: RankSteps) -> RunOutcome:
    return RunOutcome(samples, 100.0, 0.0, None, None, [], decode(*ranks))


TEN = tuple(range(100, 112))
PLAYED = [sample(0.0, 10.2, 3, *TEN), sample(0.0, 30.0, 3, *TEN), sample(10.2, 40.0, 2, *TEN)]
"""Two of equal lengths; the loop is full from 10.2 to 10.2: nothing in between but that moment."""


def test_a_batch_is_who_was_there_with_what_they_had_by_then() -> None:
    played = [*PLAYED, sample(30.0, 45.0, 3, *TEN)]
    found = batches(
        outcome(
            played,
            worker("a", stay(10.0, 10.0, 3, 12), stay(40.0, 20.0, 2, 12)),
            worker("b", stay(29.5, 20.0, 3, 12), stay(44.0, 2.0, 3, 12)),
        ),
        [*PROMPTS, (1, 2, 9)],
        2,
    )
    # Full from 10.2 to 30: at 15.15 and 25.05.
    (a1, b1), (a2, b2) = found
    assert (a1.worker, b1.worker) == ("a", "b")
    assert a1.requests == ()
    [second] = b1.requests  # of the two of equal lengths the one that ended at that time
    assert second[:3] == (4, 5, 6)
    # Two tokens at 9.5 and ten more by 29.5: 2.8 of them at 15.15, 7.8 at 25.05.
    assert second[3:] == TEN[:5]
    assert b2.requests == ((4, 5, 6, *TEN[:10]),)
    # Two tokens at 20, ten more by 40: 2.5 of them at 25.05.
    assert a2.requests == ((7, 8, *TEN[:5]),)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([stay(10.0, 10.0, 3, 12)], "2 requests are not in"),
        ([stay(10.0, 1.0, 3, 11)], "does not know"),
        ([stay(10.2 + APART_S + 30, 1.0, 3, 12)], "does not know"),
    ],
)
def test_records_that_do_not_match_are_an_error(rows: list[list[float]], what: str) -> None:
    with pytest.raises(BenchError, match=what):
        batches(outcome(PLAYED, worker("a", *rows)), PROMPTS, 1)


def test_a_prompt_that_the_workers_read_otherwise_is_an_error() -> None:
    rows = [stay(10.0, 10.0, 3, 12)]
    with pytest.raises(BenchError, match="read a prompt"):
        batches(outcome(PLAYED[:1], worker("a", *rows)), [(1, 2)], 1)


def test_without_the_workers_records_there_is_nothing() -> None:
    alone = RunOutcome(PLAYED, 1.0, 0.0, None, None, [], None, note="nobody there")
    with pytest.raises(BenchError, match="nobody there"):
        batches(alone, PROMPTS, 1)
