"""Back-off: pure arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolkit.launch.backoff import restart_delay
from toolkit.launch.deployment import Restart

POLICY = Restart(max_restarts=3, window=100, first_delay=1, max_delay=3)


def test_doubles_to_the_limit_then_gives_up():
    delays = [restart_delay(POLICY, [10.0] * n, 10.0) for n in (1, 2, 3, 4)]
    assert delays == [1, 2, 3, None]


def test_old_deaths_are_forgotten():
    assert restart_delay(POLICY, [0, 1, 2, 3, 200.0], 200.0) == 1


@given(deaths=st.lists(st.floats(0, 1e6), max_size=50), now=st.floats(0, 1e6))
def test_never_beyond_the_limit_and_never_more_than_allowed(deaths, now):
    deaths = [d for d in deaths if d <= now] + [now]
    delay = restart_delay(POLICY, deaths, now)
    recent = [d for d in deaths if now - d < POLICY.window]
    assert (delay is None) == (len(recent) > POLICY.max_restarts)
    assert delay is None or POLICY.first_delay <= delay <= POLICY.max_delay


def test_a_thousand_restarts_do_not_overflow():
    patient = Restart(max_restarts=10**6, window=1e9, first_delay=1, max_delay=30)
    assert restart_delay(patient, [0.0] * 5000, 0.0) == 30
