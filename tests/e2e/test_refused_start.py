"""A prefill worker that could not record the signatures asked of it says so instead of starting."""

import contextlib
import re
import time
from pathlib import Path

import pytest

from patches.base import REFUSED_EXIT_CODE
from tests.e2e.worker_process import STARTUP_DEADLINE_S, end, prefill_mode, start
from tests.ports import free_port
from toolkit.contract.variables import LAYERS_VARIABLE
from toolkit.launch import trees

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(STARTUP_DEADLINE_S + 60)]

SHARED_MEMORY = Path("/dev/shm")
CAPTURER = "--enable-return-routed-experts"

CASES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "the capturer is off": (
        "0,1",
        (),
        (f"without {CAPTURER}", "add the flag", "`router.profile` in the deployment file"),
    ),
    "a layer that the model lacks": (
        "0,6",
        (CAPTURER,),
        ("names layer 6", "0 to 5", "`router.profile` in the deployment file"),
    ),
    "no number": ("0,five", (CAPTURER,), ("0,five", "layer numbers with commas", "such as 0,3,5")),
    "a negative layer": ("-1", (CAPTURER,), ("=-1", "layer numbers with commas", "such as 0,3,5")),
}


def in_memory_of(leaders: dict[int, int]) -> set[str]:
    """What a worker's processes have of /dev/shm. (Other workers of this machine have theirs.)"""
    names: set[str] = set()
    for process in trees.members(leaders):
        with contextlib.suppress(OSError):  # it has ended
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            names.update(re.findall(rf"{SHARED_MEMORY}/(\S+)", maps))
    return names


# What is wrong with the other values is found by the same function before anything is started
# (tests/unit/patches/experts/test_signature_cache.py); that a worker then ends well is seen with
# these two.
STARTED = ("the capturer is off", "a layer that the model lacks")


@pytest.mark.parametrize(
    "case",
    [name if name in STARTED else pytest.param(name, marks=pytest.mark.full) for name in CASES],
)
def test_the_worker_refuses_and_says_how_to_mend_it(case: str, tmp_path: Path) -> None:
    layers, flags, said = CASES[case]
    log = tmp_path / "worker.log"
    process = start(free_port(), *prefill_mode(), *flags, log=log, **{LAYERS_VARIABLE: layers})
    born = trees.look(process.pid)
    assert born is not None
    deadline = time.monotonic() + STARTUP_DEADLINE_S
    shared: set[str] = set()
    try:
        while (status := process.poll()) is None and time.monotonic() < deadline:
            shared |= in_memory_of({process.pid: born.start})
            time.sleep(0.05)
        # The kernel ends what came from the worker's template, once the worker has ended.
        deadline = time.monotonic() + 5
        while (left := trees.members({process.pid: born.start})) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        end(process)
    text = log.read_text(errors="replace")
    assert status == REFUSED_EXIT_CODE, text[-3000:]
    # The launcher shows the log's last line.
    last = text.splitlines()[-1]
    assert last.startswith("toolkit: refused: ") and LAYERS_VARIABLE in last
    assert [words for words in said if words not in last] == [], last
    assert "Traceback" not in text
    assert left == []
    assert [name for name in shared if (SHARED_MEMORY / name).exists()] == []
