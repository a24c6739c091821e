"""Workers that share a GPU: all start, and each takes memory when the ones before it have it."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sglang_python import PROJECT, run_python
from toolkit.contract.memory_turn import MemoryTurn
from toolkit.contract.variables import TURN_VARIABLE

# A scheduler whose start takes a while and says when it has begun and ended.
SCHEDULER = textwrap.dedent(
    """
    import sys, time
    from patches.start.memory_turn import _in_turn
    def start(scheduler):
        print("begins", time.monotonic(), flush=True)
        time.sleep(0.3)
        print("ends", time.monotonic(), flush=True)
    print("is there", time.monotonic(), flush=True)
    _in_turn(start, None)
    """
)


def started(turn: MemoryTurn) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCHEDULER],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env={TURN_VARIABLE: turn.text, "PYTHONPATH": str(PROJECT)},
    )


def times(process: subprocess.Popen[str]) -> dict[str, float]:
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return {what: float(at) for what, at in (line.rsplit(" ", 1) for line in said.splitlines())}


def test_each_takes_memory_in_its_turn_and_all_are_there_before(tmp_path: Path) -> None:
    """Real processes, the last one first. The first has two ranks."""
    folder = str(tmp_path)
    third = started(MemoryTurn(folder=folder, own="c", after={"a": 2, "b": 1}))
    second = started(MemoryTurn(folder=folder, own="b", after={"a": 2}))
    first = [started(MemoryTurn(folder=folder, own="a")) for _ in range(2)]
    a, b, c = [times(each) for each in first], times(second), times(third)
    assert max(each["ends"] for each in a) <= b["begins"]
    assert b["ends"] <= c["begins"]
    assert max(b["is there"], c["is there"]) < c["begins"]


def test_a_rank_that_is_missing_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.10.11").touch()
    (tmp_path / "a.20.21").touch()  # another life, which died before its second rank was there
    waiting = started(MemoryTurn(folder=str(tmp_path), own="b", after={"a": 2}))
    assert waiting.stdout is not None and waiting.stdout.readline().startswith("is there")
    time.sleep(0.3)
    assert waiting.poll() is None and not (tmp_path / "b").exists()
    (tmp_path / "a.20.22").touch()
    assert "begins" in times(waiting)


def test_who_did_not_get_its_memory_does_not_say_that_it_has_it(tmp_path: Path) -> None:
    failing = SCHEDULER.replace("time.sleep(0.3)", "raise RuntimeError('out of memory')")
    turn = MemoryTurn(folder=str(tmp_path), own="a")
    done = subprocess.run(
        [sys.executable, "-c", failing],
        capture_output=True,
        cwd=PROJECT,
        env={TURN_VARIABLE: turn.text, "PYTHONPATH": str(PROJECT)},
        timeout=60,
    )
    assert done.returncode != 0 and list(tmp_path.iterdir()) == []


@given(
    lives=st.dictionaries(
        st.sampled_from(["a", "a.b", "decode-1", "decode-10"]), st.lists(st.integers(1, 4))
    ),
    ranks=st.integers(1, 4),
)
def test_a_worker_has_its_memory_when_one_of_its_lives_has_it(
    lives: dict[str, list[int]], ranks: int
) -> None:
    files = [
        MemoryTurn(folder="/", own=name).file(life, rank)
        for name, counts in lives.items()
        for life, count in enumerate(counts)
        for rank in range(count)
    ]
    after = dict.fromkeys(["a", "a.b", "decode-1", "decode-10"], ranks)
    turn = MemoryTurn(folder="/", own="x", after=after)
    assert MemoryTurn.read(turn.text) == turn
    missing = [name for name in after if max(lives.get(name, []), default=0) < ranks]
    assert turn.waits_for(files) == missing


HOOKED = """
import os, sys
from pathlib import Path
from patches import base
base.enter(base.Process.SCHEDULER)
import sglang.srt.managers.scheduler as module
module.Scheduler.__init__ = lambda self, server_args, port_args, *more: print("takes", more)
import patches
patches.register()
module.Scheduler({}, {}, 3)
print(sorted(each.name.split(".")[0] for each in Path(sys.argv[1]).iterdir()))
"""


@pytest.mark.parametrize("told", [True, False])
def test_it_is_sglangs_scheduler_that_waits_and_says_so(tmp_path: Path, told: bool) -> None:
    turn = MemoryTurn(folder=str(tmp_path), own="a").text if told else ""
    done = run_python(HOOKED, [str(tmp_path)], **{TURN_VARIABLE: turn})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-2:] == ["takes (3,)", "['a']" if told else "[]"]
