"""Back-off: pure arithmetic."""

from hypothesis import given
from hypothesis import strategies as st

from toolkit.launch.backoff import NextStart, next_start, without
from toolkit.settings.processes import Restart

POLICY = Restart(
    max_restarts=3, window=100, first_delay=1, max_delay=3, rest_first=60, rest_max=200
)


def test_doubles_to_the_limit_then_rests() -> None:
    found = [next_start(POLICY, [10.0] * n, 10.0) for n in (1, 2, 3, 4)]
    assert found == [
        NextStart(1, False),
        NextStart(2, False),
        NextStart(3, False),
        NextStart(60, True),
    ]


def test_rests_grow_to_their_limit_and_never_end() -> None:
    """The deaths between two rests leave the window: it must not get its quick tries back."""
    found = [next_start(POLICY, [1000.0], 1000.0, rests) for rests in (1, 2, 3, 10**6)]
    assert found == [
        NextStart(120, True),
        NextStart(200, True),
        NextStart(200, True),
        NextStart(200, True),
    ]


def test_old_deaths_are_forgotten() -> None:
    assert next_start(POLICY, [0, 1, 2, 3, 200.0], 200.0) == NextStart(1, False)


def test_deaths_by_poison_are_the_latest_ones() -> None:
    assert without([1.0, 2.0, 3.0], 2) == [1.0]
    assert without([1.0], 5) == []


@given(
    deaths=st.lists(st.floats(0, 1e6), max_size=50),
    now=st.floats(0, 1e6),
    rests=st.integers(0, 100),
)
def test_never_beyond_the_limits_and_always_another_try(
    deaths: list[float], now: float, rests: int
) -> None:
    deaths = [d for d in deaths if d <= now] + [now]
    delay, resting = next_start(POLICY, deaths, now, rests)
    recent = [d for d in deaths if now - d < POLICY.window]
    assert resting == (rests > 0 or len(recent) > POLICY.max_restarts)
    low, high = (60, 200) if resting else (1, 3)
    assert low <= delay <= high


def test_a_thousand_restarts_do_not_overflow() -> None:
    patient = Restart(max_restarts=10**6, window=1e9, first_delay=1, max_delay=30)
    assert next_start(patient, [0.0] * 5000, 0.0) == NextStart(30, False)
