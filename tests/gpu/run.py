"""Runs steps one after the other, each in a process of its own, until the time is used up."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu import facts, record, together
from tests.gpu.plan import Step

ENDS_S = 20.0
"""For a step that was told to end: its workers have to be stopped."""
LEAST_S = 30.0
"""With less than this no step is begun that was expected to take longer."""


@dataclass(frozen=True)
class Settings:
    """How the steps are run; `scratch` keeps models and logs."""

    device: str
    tiny: bool
    out: Path
    scratch: Path
    limit_s: float
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, step: str) -> list[str]:
        own = [sys.executable, "-m", "tests.gpu.one_step", step, "--device", self.device]
        own += ["--scratch", str(self.scratch), "--out", str(self.path(step))]
        return own + (["--tiny"] if self.tiny else [])

    def path(self, step: str) -> Path:
        return self.out / f"{step}.json"


@dataclass
class Outcome:
    """Names of steps by what became of them; `left`: no time was left for them."""

    done: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def status(self) -> int:
        """0: all there and right; 1: one failed; 3: some are left for another run."""
        if any(state != "ok" for state in self.done.values()):
            return 1
        return 3 if self.left else 0


def run(steps: Sequence[Step], settings: Settings, again: Sequence[str] = ()) -> Outcome:
    """Those whose result is there are skipped, except for `again`: names, or "failed" for all whose
    result is not "ok"."""
    outcome, begin = Outcome(), time.monotonic()
    settings.scratch.mkdir(parents=True, exist_ok=True)
    for step in steps:
        path = settings.path(step.name)
        if path.exists() and step.name not in again and not _failed_again(path, again):
            outcome.skipped.append(step.name)
            say(f"{step.name}: its result is there ({path})")
            continue
        left = settings.limit_s - (time.monotonic() - begin) - ENDS_S
        if left < min(LEAST_S, step.estimate_s) or (not settings.tiny and left < step.estimate_s):
            outcome.left.append(step.name)
            say(f"{step.name}: not begun, {max(left, 0):.0f} s are left of {settings.limit_s:.0f}")
            continue
        path.unlink(missing_ok=True)
        limit = min(left, step.limit_s if not settings.tiny else left)
        say(f"{step.name}: {step.shows} (at most {limit:.0f} s)")
        outcome.done[step.name] = one(step, settings, limit)
    return outcome


def run_together(steps: Sequence[Step], settings: Settings) -> Outcome:
    """All at once, whatever results are there; they measure one after the other, once each of them
    has its workers (`tests.gpu.together`)."""
    folder = together.folder(settings.scratch)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for step in steps:
        settings.path(step.name).unlink(missing_ok=True)
    begin = time.monotonic()
    try:
        with ThreadPoolExecutor(len(steps)) as pool:
            doing = {
                step.name: pool.submit(one, step, settings, settings.limit_s - ENDS_S)
                for step in steps
            }
            while not all(
                each.done() or (folder / f"{name}.up").exists() for name, each in doing.items()
            ):
                time.sleep(together.LOOK_S)
            say(f"all have started after {time.monotonic() - begin:.0f} s")
            (folder / "go").touch()
            return Outcome({name: each.result() for name, each in doing.items()})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _failed_again(path: Path, again: Sequence[str]) -> bool:
    return "failed" in again and record.read(path)["status"] != "ok"


def one(step: Step, settings: Settings, limit_s: float) -> str:
    """Run a step and see that it leaves a result; the result's status."""
    command, path = settings.command(step.name), settings.path(step.name)
    log = settings.scratch / f"{step.name}.log"
    begin = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=os.environ | settings.environment,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
    seconds = time.monotonic() - begin
    if not path.exists():
        told = log.read_text(errors="replace").strip().splitlines()[-20:]
        state = "timed out" if code is None else "failed"
        what = f"ended after {limit_s:.0f} s" if code is None else f"exit status {code}"
        record.write(path, bare(step, settings, state, seconds, "\n".join([what, *told])))
    result = record.read(path)
    say(f"{step.name}: {result['status']} after {seconds:.0f} s")
    if result["error"]:
        say("  " + result["error"].strip().splitlines()[-1])
    return str(result["status"])


def bare(step: Step, settings: Settings, state: str, seconds: float, error: str) -> dict[str, Any]:
    """The result of a step that left none itself."""
    return {
        "step": step.name,
        "status": state,
        "seconds": seconds,
        "device": {"kind": settings.device},
        "versions": facts.versions(),
        "command": " ".join(settings.command(step.name)[1:]),
        "commit": facts.checkout()["commit"],
        "tiny": settings.tiny,
        "figures": {},
        "error": error,
    }


def end(process: subprocess.Popen[bytes]) -> None:
    """End a step and whatever it has started: first as it would end itself, then for good."""
    import psutil

    try:
        family = [psutil.Process(process.pid)]
        family += family[0].children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for member in family:
        try:
            member.kill()  # psutil checks that the number is still that process's
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, ENDS_S)  # a GPU's memory is free when its process is gone


def say(line: str) -> None:
    print(line, flush=True)
