"""When the decode worker of a long prompt is chosen: as late as its KV allows, or at its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.early_choice import KEPT, SLACK, EarlyChoice, PrefillPace

CHUNK = 8192
DEEPSEEK, QWEN = 61 * 576 * 2, 48 * 2 * 4 * 128 * 2
"""Bytes of KV a token: DeepSeek-V3, Qwen3-30B-A3B."""


def pace(token_s: float, token_kv_s: float) -> PrefillPace:
    return PrefillPace(chunk_tokens=1, chunk_s=token_s, sent_tokens=1, sent_s=token_kv_s)


def chosen(
    rule: EarlyChoice, total: int, chunk: int, measured: PrefillPace, cached: int = 0
) -> int | None:
    """The token at which it is; None: at the end."""
    for done in range(cached + chunk, total, chunk):
        if rule.now(cached, done, total, chunk, measured):
            return done
    return None


def played(begun: int, total: int, chunk: int, measured: PrefillPace) -> float:
    """Seconds of KV that is on its way when the prompt is through, where the first `begun` tokens
    leave at once and each chunk when it has run: packet by packet."""
    free_at = begun * measured.token_kv_s
    now = 0.0
    while begun < total:
        tokens = min(chunk, total - begun)
        now += tokens * measured.token_s
        free_at = max(free_at, now) + tokens * measured.token_kv_s
        begun += tokens
    return free_at - now


lengths = st.integers(1, 40)
speeds = st.floats(1e-6, 1e-2)
rules = st.builds(EarlyChoice, st.just(0.0), st.sampled_from([1, 2]))


@given(rules, lengths, st.integers(1, 9), st.integers(0, 30), speeds, speeds)
def test_it_is_the_latest_that_saves_nearly_as_much(
    rule: EarlyChoice, chunks: int, tail: int, cached: int, token_s: float, kv_s: float
) -> None:
    measured, chunk = pace(token_s, kv_s), 10
    total = cached + chunk * (chunks - 1) + tail
    late = total * kv_s
    boundaries = range(cached + chunk, total, chunk)
    exposed = {
        done: played(begun, total, chunk, measured) if begun < total else late
        for done in boundaries
        for begun in [done + rule.ahead * chunk]
    }
    for done, seconds in exposed.items():
        assert rule.exposed_s(done, total, chunk, measured) == pytest.approx(seconds)
    assert sorted(exposed.values()) == pytest.approx(list(exposed.values())), "later exposes more"
    found = chosen(rule, total, chunk, measured, cached)
    if chunks < 3 or exposed[boundaries[0]] >= late * (1 - 1e-9):
        return
    earliest = exposed[boundaries[0]]
    most = earliest + SLACK * (late - earliest)
    good = [done for done, seconds in exposed.items() if seconds <= most * (1 + 1e-9)]
    assert found is not None
    # Rounding may decide between two that are the same.
    assert found == good[-1] or exposed[found] == pytest.approx(exposed[good[-1]])


@given(rules, st.integers(1, 2 * CHUNK), speeds, speeds)
def test_prompts_of_two_chunks_wait_for_their_end(
    rule: EarlyChoice, total: int, token_s: float, kv_s: float
) -> None:
    assert chosen(rule, total, CHUNK, pace(token_s, kv_s)) is None


@pytest.mark.parametrize(("kv", "exposed_ms", "late_ms"), [(DEEPSEEK, 12, 46), (QWEN, 16, 64)])
def test_32k_tokens_over_400_gigabits(kv: int, exposed_ms: float, late_ms: float) -> None:
    """The figures of the design: only the last chunk's KV is left."""
    measured = pace(1 / 50_000, kv / 50e9)
    rule, total = EarlyChoice(0.03), 4 * CHUNK
    done = chosen(rule, total, CHUNK, measured)
    assert done == 2 * CHUNK
    assert 1e3 * rule.exposed_s(done, total, CHUNK, measured) == pytest.approx(exposed_ms, abs=0.5)
    assert 1e3 * total * measured.token_kv_s == pytest.approx(late_ms, abs=0.5)


def test_where_it_gains_little_it_stays_late() -> None:
    slow, fast = (pace(1 / rate, DEEPSEEK / 50e9) for rate in (10_000, 50_000))
    assert chosen(EarlyChoice(0.03), 128 * 1024, CHUNK, slow) is None  # 1.4 %
    assert chosen(EarlyChoice(0.03), 128 * 1024, CHUNK, fast) is not None
    assert chosen(EarlyChoice(0.0), 128 * 1024, CHUNK, slow) is not None


def test_a_slow_network_needs_it_earlier() -> None:
    rule, total = EarlyChoice(0.0), 16 * CHUNK
    rates = (50e9, 12.5e9, 3.5e9, 1e9)
    found = [chosen(rule, total, CHUNK, pace(1 / 50_000, DEEPSEEK / rate)) for rate in rates]
    chunks = [0 if done is None else done // CHUNK for done in found]
    assert chunks == [14, 11, 2, 2]


def test_a_loop_that_launches_ahead_is_told_a_chunk_earlier() -> None:
    measured = pace(1 / 50_000, DEEPSEEK / 50e9)
    assert chosen(EarlyChoice(0.0, ahead=2), 16 * CHUNK, CHUNK, measured) == 13 * CHUNK
    assert chosen(EarlyChoice(0.0, ahead=2), 3 * CHUNK, CHUNK, measured) is None


def test_nothing_is_chosen_before_anything_was_measured() -> None:
    rule, measured = EarlyChoice(0.0), PrefillPace()
    assert chosen(rule, 16 * CHUNK, CHUNK, measured) is None
    measured.computed(CHUNK, 0.2)
    assert chosen(rule, 16 * CHUNK, CHUNK, measured) is None
    measured.sent(100, 0.001)
    assert chosen(rule, 16 * CHUNK, CHUNK, measured) is not None


def test_what_is_older_weighs_less() -> None:
    measured = PrefillPace()
    measured.computed(100, 1.0)
    measured.computed(100, 2.0)
    assert measured.token_s == pytest.approx((KEPT * 1 + 2) / (KEPT * 100 + 100))
    measured.sent(10, 1.0)
    measured.sent(30, 1.0)
    assert measured.token_kv_s == pytest.approx((KEPT + 1) / (KEPT * 10 + 30))
