"""Every worker flag against the installed SGLang's own ServerArgs, in one child process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from toolkit.bounded_files import parse_json
from toolkit.launch import command
from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan, WorkerPlan

TIMEOUT = 300.0
IB_FLAG = "--disaggregation-ib-device"
INFINIBAND = Path("/sys/class/infiniband")
Resolved = dict[str, dict[str, Any]]


def check_flags(plan: Plan, dry_run: bool = False) -> tuple[list[Problem], Resolved]:
    """Problems that SGLang has with the flags, and what it made of them, by worker name.

    Workers with equal flags but for ports, addresses and ranks are asked about once.
    """
    groups: dict[str, list[WorkerPlan]] = {}
    for worker in plan.workers:
        groups.setdefault(_kind(worker), []).append(worker)
    lines = []
    no_ib = not INFINIBAND.is_dir() and any(IB_FLAG in w.argv for w in plan.workers)
    for workers in groups.values():
        argv = [plan.model.check_path if a == plan.model.path else a for a in workers[0].argv]
        argv = _without(argv, IB_FLAG) if no_ib else argv
        lines.append({"name": workers[0].name, "argv": argv, "device": plan.device})
    answers, complaint = _ask(lines)
    problems = [complaint] if complaint else []
    if no_ib:
        what = f"this machine has no RDMA devices ({INFINIBAND}): ib_device was not checked"
        repair = "install the InfiniBand drivers, or leave ib_device out"
        problems.append(Problem("transfer.ib_device", what, repair, fatal=not dry_run))
    resolved: Resolved = {}
    for workers in groups.values():
        answer = answers.get(workers[0].name)
        if answer is None:
            continue
        if not answer.get("ok"):
            names = _names(workers)
            what = f"SGLang refuses the flags: {answer.get('error')}"
            repair = f"change {workers[0].role}.args or the sizes in the deployment file"
            problems.append(Problem(names, what, repair))
        for worker in workers:
            resolved[worker.name] = answer.get("resolved") or {}
    return problems, resolved


def _without(argv: list[str], flag: str) -> list[str]:
    at = argv.index(flag) if flag in argv else len(argv)
    return argv[:at] + argv[at + 2 :]


def _kind(worker: WorkerPlan) -> str:
    own = {"--host", "--port", "--node-rank", "--dist-init-addr", "--disaggregation-bootstrap-port"}
    own.add("--init-expert-location")  # a file that the launcher writes
    pairs = zip(("", *worker.argv), worker.argv, strict=False)
    return "\0".join(arg for before, arg in pairs if before not in own)


def _names(workers: list[WorkerPlan]) -> str:
    if len(workers) == 1:
        return workers[0].name
    return f"{workers[0].name} .. {workers[-1].name}"


def _ask(lines: list[dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], Problem | None]:
    repair = "`toolkit doctor` says what is missing in this installation"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "patches.check_args"],
            input="".join(json.dumps(line) + "\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env={**os.environ, **command.python_env()},
        )
    except (OSError, subprocess.SubprocessError) as error:
        return {}, Problem("flags", f"cannot be checked: {error}", repair)
    answers = {}
    for line in done.stdout.splitlines():
        try:
            answer = parse_json(line)
        except ValueError:
            continue  # something that SGLang printed on import
        if isinstance(answer, dict) and "name" in answer:
            answers[answer["name"]] = answer
    missing = [line["name"] for line in lines if line["name"] not in answers]
    if missing:
        tail = "\n".join(done.stderr.rstrip().splitlines()[-8:])
        what = f"no answer on {', '.join(missing)} (exit status {done.returncode})\n{tail}"
        return answers, Problem("flags", what, repair)
    return answers, None
