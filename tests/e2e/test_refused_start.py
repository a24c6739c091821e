"""A prefill worker that could not record the signatures asked of it says so instead of starting."""

from __future__ import annotations

from pathlib import Path

import pytest

from patches.base import REFUSED_EXIT_CODE
from tests.e2e.worker_process import STARTUP_DEADLINE_S, prefill_mode, start
from tests.ports import free_port
from toolkit.launch import trees
from toolkit.launch.variables import LAYERS_VARIABLE

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


def abandoned(before: set[str]) -> set[str]:
    """What has come into /dev/shm since `before` and is in nobody's memory: another worker of this
    machine may have started meanwhile."""
    fresh = {entry.name for entry in SHARED_MEMORY.iterdir()} - before
    mapped = []
    for process in Path("/proc").glob("[0-9]*/maps"):
        try:
            mapped.append(process.read_text(errors="replace"))
        except OSError:  # it has ended
            continue
    unused = {name for name in fresh if not any(name in maps for maps in mapped)}
    return {name for name in unused if (SHARED_MEMORY / name).exists()}


@pytest.mark.parametrize("case", CASES)
def test_the_worker_refuses_and_says_how_to_mend_it(case: str, tmp_path: Path) -> None:
    layers, flags, said = CASES[case]
    log = tmp_path / "worker.log"
    memory = {entry.name for entry in SHARED_MEMORY.iterdir()}
    process = start(free_port(), *prefill_mode(), *flags, log=log, **{LAYERS_VARIABLE: layers})
    born = trees.look(process.pid)
    assert born is not None
    try:
        status = process.wait(STARTUP_DEADLINE_S)
        left = trees.members({process.pid: born.start})
    finally:
        trees.kill_all({process.pid: born.start})
        process.wait()
    text = log.read_text(errors="replace")
    assert status == REFUSED_EXIT_CODE, text[-3000:]
    # The launcher shows the log's last line.
    last = text.splitlines()[-1]
    assert last.startswith("toolkit: refused: ") and LAYERS_VARIABLE in last
    assert [words for words in said if words not in last] == [], last
    assert "Traceback" not in text
    assert left == []
    assert abandoned(memory) == set()
