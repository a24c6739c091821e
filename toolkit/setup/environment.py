"""Makes `.venv` what the project needs, doing only what is not done yet."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import Dict, Iterator, List

from toolkit.setup import checks, installer, libraries, lockfile, say, stamp, verify
from toolkit.setup.layout import SetupLayout


def ready(layout: SetupLayout) -> bool:
    """Whether a finished set-up of exactly these packages is there, libraries included."""
    return stamp.read(layout) == stamp.wanted(layout) and not libraries.missing()


def ensure(layout: SetupLayout) -> None:
    """Sets up `.venv`, or returns at once when it is as wanted.

    An interrupted run is taken up again where it stopped. Two at once wait for each other.

    Raises:
        SetupError: what is missing and how to mend it.
    """
    if ready(layout):
        say.line(f"{layout.venv} is as it should be")
        return
    with _only_one(layout):
        if ready(layout):  # the other one has done it meanwhile
            return
        start = time.monotonic()
        _check(layout)
        libraries.ensure()
        _make_venv(layout)
        _fill(layout)
        say.line(f"all set up in {time.monotonic() - start:.0f} s")


def _check(layout: SetupLayout) -> None:
    filled = (layout.site_packages / "torch").is_dir()
    problems = checks.machine_problems(layout.root, installed=filled)
    for problem in problems:
        if not problem.fatal:
            say.line(f"careful: {problem.text}")
    fatal = [problem.text for problem in problems if problem.fatal]
    if fatal:
        raise say.SetupError("\n".join(fatal))


def _make_venv(layout: SetupLayout) -> None:
    if _usable(layout):
        return
    if layout.venv.is_symlink():
        raise say.SetupError(
            f"{layout.venv} is a link to the environment of another folder, which would be made "
            "anew: remove the link, or call that environment's Python itself"
        )
    if layout.venv.exists():
        say.line(f"{layout.venv} is of another Python or another folder: making it anew")
        shutil.rmtree(layout.venv)
    with say.step(f"virtual environment {layout.venv}"):
        # Its own base, so that a run from inside some environment makes no child of that one.
        base = getattr(sys, "_base_executable", None) or sys.executable
        made = subprocess.run(
            [base, "-m", "venv", str(layout.venv)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise say.SetupError(
                f"`{base} -m venv` failed:\n{(made.stdout + made.stderr).strip()[-600:]}"
            )


def _usable(layout: SetupLayout) -> bool:
    """Whether `.venv` is whole, of this Python's version, and was made at this place: the scripts
    of a moved one call the old place's Python."""
    try:
        made = (layout.venv / "pyvenv.cfg").read_text()
    except OSError:
        return False
    version = "version = %d.%d." % sys.version_info[:2]
    whole = layout.python.exists() and (layout.site_packages / "pip").is_dir()
    return whole and version in made and f"-m venv {layout.venv}\n" in made


def _fill(layout: SetupLayout) -> None:
    pins = lockfile.parse(layout.requirements.read_text())
    stamp.remove(layout)
    layout.log.write_text("")
    # A PyTorch of the version that is there already does, whatever its build.
    wrong = _lacking(layout, pins)
    if wrong:
        with say.step(f"{len(wrong)} pinned packages (PyTorch, SGLang, Mooncake; no CUDA)"):
            installer.install(layout, [f"{name}=={pins[name]}" for name in wrong])
    with say.step("the project itself, editable"):
        installer.install(layout, ["--no-build-isolation", "--editable", str(layout.root)])
    wrong = _lacking(layout, pins)
    if wrong:
        raise say.SetupError(
            f"These packages are still not as pinned: {' '.join(wrong)}. Remove {layout.venv} "
            f"and run the command again. (The whole story: {layout.log})"
        )
    stamp.write(layout, stamp.wanted(layout))


def _lacking(layout: SetupLayout, pins: Dict[str, str]) -> List[str]:
    """What is to be installed. An install that was killed left some packages half there."""
    verify.forget_damaged(layout.site_packages, pins)
    return verify.differing(layout.site_packages, pins)


@contextmanager
def _only_one(layout: SetupLayout) -> Iterator[None]:
    """Holds the project's set-up lock; the kernel frees it however the holder ends."""
    with layout.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            say.line(f"another set-up is running here (process {file.read().strip()}): waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
