"""When a process that holds work is stuck: rules that hold for any run of readings."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.contract import heartbeat
from toolkit.contract.heartbeat import DOING_BYTES, LONGEST_S, Beat, HeartbeatFile
from toolkit.decide.watchdog import FACTOR, GAP_S, Health, StuckBounds, Watchdog

BOUNDS = StuckBounds(stuck_s=5.0, announced_s=120.0)
GAPS = st.lists(st.floats(0.05, GAP_S), min_size=1, max_size=300)
DOING = st.sampled_from([("", 0.0), ("", 0.02), ("decode step", 2.0), ("first prefill", 0.0)])


def stand(dog: Watchdog, beat: Beat, seconds: float, now: float, gap: float = 0.5) -> float:
    """Read the same again and again for so long; the time then."""
    dog.read(beat, True, now)
    end = now + seconds
    while now < end:
        now += gap
        dog.read(beat, True, now)
    return now


@given(gaps=GAPS, doing=DOING)
def test_who_makes_steps_is_never_suspect(gaps: list[float], doing: tuple[str, float]) -> None:
    dog, now = Watchdog(BOUNDS), 1000.0
    for beats, gap in enumerate(gaps):
        now += gap
        assert dog.read(Beat(beats, True, *doing), True, now) is Health.HEALTHY


@given(gaps=GAPS, doing=DOING)
def test_who_holds_no_work_is_never_suspect(gaps: list[float], doing: tuple[str, float]) -> None:
    dog, now = Watchdog(BOUNDS), 0.0
    for gap in gaps:
        now += gap
        assert dog.read(Beat(7, False, *doing), False, now) is Health.HEALTHY


@given(gaps=GAPS, doing=DOING, own_word=st.booleans(), steps=st.integers(0, 5))
def test_who_stands_still_with_work_is_stuck_after_its_bound_and_not_before(
    gaps: list[float], doing: tuple[str, float], own_word: bool, steps: int
) -> None:
    dog, now = Watchdog(BOUNDS), 0.0
    for beats in range(steps + 1):
        dog.read(Beat(beats, own_word, *doing), not own_word, now)
    still = 0.0
    bound = BOUNDS.of(Beat(steps, own_word, *doing))
    for gap in gaps * (1 + int(bound / sum(gaps))):
        now += gap
        health = dog.read(Beat(steps, own_word, *doing), not own_word, now)
        still += gap
        if still >= bound + 1e-6:
            assert health is Health.STUCK
        elif still < 0.5 * bound - 1e-6:
            assert health is Health.HEALTHY
        elif still < bound - 1e-6 and still > 0.5 * bound + 1e-6:
            assert health is Health.SUSPECT
    now = stand(dog, Beat(steps, own_word, *doing), bound, now)
    assert dog.health is Health.STUCK
    assert dog.read(Beat(steps + 1, True), True, now + 0.1) is Health.HEALTHY


@given(jumps=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=int(5.0 / GAP_S)))
def test_a_reader_that_was_held_up_proves_nothing(jumps: list[float]) -> None:
    """As many readings as it takes are needed, however far apart the clock says they are."""
    dog, now = Watchdog(BOUNDS), 0.0
    dog.read(Beat(1, True), True, now)
    for jump in jumps:
        now += jump
        assert dog.read(Beat(1, True), True, now) is not Health.STUCK


@pytest.mark.parametrize(
    ("beat", "bound"),
    [
        (Beat(1), 5.0),
        (Beat(1, doing="decode step", expected_s=0.01), 5.0),
        (Beat(1, doing="prefill of 25000 tokens", expected_s=9.0), 9.0 * FACTOR),
        (Beat(1, doing="", expected_s=2.0), 2.0 * FACTOR),
        (Beat(1, doing="first decode step"), 120.0),
        (Beat(1, doing="UpdateWeightFromDiskReqInput"), 120.0),
    ],
)
def test_the_bound_follows_from_what_is_announced_and_how_long_it_should_take(
    beat: Beat, bound: float
) -> None:
    assert BOUNDS.of(beat) == pytest.approx(bound)


def test_what_is_announced_gets_its_time_even_when_it_is_announced_late() -> None:
    dog = Watchdog(BOUNDS)
    now = stand(dog, Beat(1, True, "first decode step"), 60.0, 0.0)
    assert dog.health is Health.SUSPECT
    stand(dog, Beat(1, True, "first decode step"), 60.0, now)
    assert dog.health is Health.STUCK  # type: ignore[comparison-overlap]
    assert "first decode step" in dog.describe()


def test_one_that_stood_is_no_better_when_its_work_is_gone() -> None:
    """Requests leave a stuck worker: that must not bring others there."""
    dog = Watchdog(BOUNDS)
    now = stand(dog, Beat(1), 5.0, 0.0)
    assert dog.health is Health.STUCK
    assert dog.read(Beat(1), False, now + 60.0) is Health.STUCK
    assert dog.read(Beat(2), False, now + 61.0) is Health.HEALTHY


def test_who_waits_for_another_has_that_one_s_time() -> None:
    dog, now = Watchdog(BOUNDS), 0.0
    while now < 100.0:
        now += 0.5
        dog.read(Beat(1, True), True, now, allowed_s=120.0)
    assert dog.health is Health.SUSPECT
    dog.read(Beat(1, True), True, now, allowed_s=5.0)
    assert dog.health is Health.STUCK  # type: ignore[comparison-overlap]


def test_a_bound_of_0_never_judges() -> None:
    dog = Watchdog(StuckBounds(0.0, 120.0))
    stand(dog, Beat(1, True), 1000.0, 0.0)
    assert dog.health is Health.HEALTHY


@given(
    beats=st.integers(0, 2**64 - 1),
    works=st.booleans(),
    doing=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=DOING_BYTES),
    expected_s=st.floats(0, LONGEST_S),
)
def test_a_heartbeat_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    beats: int,
    works: bool,
    doing: str,
    expected_s: float,
) -> None:
    path = tmp_path_factory.mktemp("beats") / heartbeat.scheduler(3)
    written = Beat(beats, works, doing, expected_s)
    HeartbeatFile(path).write(written)
    assert heartbeat.read(path) == written
    assert heartbeat.read_all(path.parent) == {"scheduler-3": written}
    assert path.stat().st_mode & 0o077 == 0, "others can read it"


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 1000])
def test_a_file_that_is_none_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "scheduler-0").write_bytes(content)
    (tmp_path / "other").write_bytes(b"")
    assert heartbeat.read_all(tmp_path) == {}
    assert heartbeat.read_all(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("said", [float("nan"), float("inf"), -1.0])
def test_an_expectation_that_cannot_be_is_none(said: float) -> None:
    assert heartbeat.sane_seconds(said) == 0.0
    assert heartbeat.sane_seconds(1e9) == LONGEST_S
