"""Writers that are killed, at every system call that Python reports, by a real SIGKILL."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Forks a writer again and again; the n-th dies at its n-th audited event (open, mkdir, rename,
# chmod, remove, ...), until one comes through. After each: what is there to read, what is left.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from tests.unit.profile import sample
from toolkit.profile_folder import swap
from toolkit.profile_folder import store
from toolkit.profile_folder.errors import ProfileError

target, mode = Path(sys.argv[1]), sys.argv[2]
profile, arrays = sample.build()
def called(name):
    return profile.model_copy(update={"model": profile.model.model_copy(update={"name": name})})
if mode == "no-exchange":
    swap._exchange = lambda one, other: False
store.write(target.with_name("warm"), called("warm"), arrays, "x")  # imports are done now
store.read(target.with_name("warm"))
found = []
for deadly in range(1, 1000):
    if mode != "first":
        store.write(target, called("old"), arrays, "old")
    child = os.fork()
    if child == 0:
        left = deadly
        def hook(event, args):
            global left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        store.write(target, called("new"), arrays, "new")
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    stale = [x.name for x in target.parent.iterdir() if x.name[0] == "."]
    try:
        read = store.read(target)[0].model.name
        report = (swap.settled(target) / store.REPORT).read_text()
    except ProfileError as error:
        read = report = "nothing" if "is no folder" in str(error) else f"broken: {error}"
    found.append([status, read, report, len(stale)])
    if status == 0:
        break
    store.write(target, called("old"), arrays)
    assert not [x.name for x in target.parent.iterdir() if x.name[0] == "."]
    if mode == "first":
        import shutil
        shutil.rmtree(target)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["first", "exchange", "no-exchange"])
def test_killed_anywhere(tmp_path: Path, mode: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "target"), mode],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    before = "nothing" if mode == "first" else "old"
    assert len(found) > 15  # that many points were really tried
    for status, read, report, _ in found[:-1]:
        assert status == -9
        assert read == report
        assert read in (before, "new")
    assert found[-1] == [0, "new", "new", 0]
    kinds = [row[1] for row in found]
    assert kinds.index("new") > 10  # the swap comes late, and then it stays
    assert set(kinds[kinds.index("new") :]) == {"new"}
    assert any(row[3] for row in found)  # half-written folders were left, and were cleaned
