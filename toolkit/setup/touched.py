"""Parts of the tests that run for a change only where it touches what they try.

`tests/passed.json` keeps, for each part, a digest of the files that it tries: as they were when it
last passed as a whole. The test command runs a part whose files now have another digest, and
`--full` runs them all. Git is not asked: a checkout without history knows as much.

`python -m toolkit.setup.touched` says what a run would do; `--record PART ...` writes the digests,
after a run in which these parts have passed (a whole run that passes writes them by itself).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from toolkit.setup import say

RECORD = Path("tests") / "passed.json"
KERNELS, BROWSER, TWO_NODES, NEWEST = "kernels", "browser", "two-nodes", "newest-release"
RELEASES, RELOCATION, PREEMPTION = "releases", "relocation", "preemption"
DETERMINISM, DP_POLICIES, WAITING = "determinism", "dp-policies", "waiting-order"
CPU_ENGINE, SIGNATURES, STAGES = "cpu-engine", "signatures", "stages"
NETWORK, KV_FAILURE, HELD_UP = "network", "kv-failure", "held-up"
PROFILE, BENCH, LAUNCHER = "profile-command", "bench-command", "launch-command"
MOVING, ELDR = "moving", "eldr"
PLANNING, PLACEMENT, POLICIES, GPU = "planning", "placement", "policies", "gpu-checks"

ALL = "all"
_EVERY = ("pyproject.toml", "toolkit/setup/cpu.lock")
"""What may change any answer: the versions of all packages."""
_WORKERS = ("patches", "toolkit/contract", "toolkit/policies", "toolkit/embedded")
_UNIT, _E2E = "tests/unit", "tests/e2e"
PARTS: Dict[str, Tuple[str, ...]] = {
    KERNELS: (
        "toolkit/placement",
        "toolkit/policies",
        "toolkit/signatures",
        "toolkit/simulate",
        "toolkit/setup/kernels.py",
        "tests/kernels.py",
        "tests/numeric.py",
        "tests/synthetic_routing.py",
        *(f"{_UNIT}/{name}" for name in ("placement", "policies", "signatures", "simulate")),
    ),
    BROWSER: (
        "toolkit/report",
        "toolkit/bench",
        "toolkit/profile/report",
        "toolkit/simulate",
        f"{_E2E}/browser.py",
        f"{_E2E}/test_report_browser.py",
        *(f"{_UNIT}/{name}" for name in ("bench/pages.py", "profile/sample.py", "simulate")),
    ),
    TWO_NODES: (*_WORKERS, f"{_E2E}/test_two_nodes.py", f"{_E2E}/worker_process.py"),
    NEWEST: (
        *_WORKERS,
        "toolkit/launch",
        "toolkit/router",
        "toolkit/decide",
        "toolkit/settings",
        "toolkit/setup/releases.py",
        f"{_E2E}/test_newest_release.py",
        f"{_E2E}/deployments.py",
    ),
    PLANNING: (
        "toolkit/cli",
        "toolkit/bench",
        "toolkit/placement",
        "toolkit/plan",
        "toolkit/policies",
        "toolkit/profile_folder",
        "toolkit/signatures",
        "toolkit/simulate",
        *(f"{_UNIT}/{name}" for name in ("plan", "simulate")),
    ),
    PLACEMENT: (
        "toolkit/placement",
        "toolkit/profile_folder",
        "toolkit/signatures",
        "tests/synthetic_routing.py",
        f"{_UNIT}/placement",
    ),
    POLICIES: (
        "toolkit/policies",
        "toolkit/signatures",
        "tests/gimbal_objective.py",
        f"{_UNIT}/policies",
        f"{_UNIT}/signatures",
    ),
    GPU: (
        "patches",
        "tests/gpu",
        "toolkit/launch",
        "toolkit/settings",
        "toolkit/setup",
        f"{_UNIT}/gpu",
    ),
    RELEASES: ("patches", "tests/releases", f"{_UNIT}/releases", "toolkit/setup/releases.py"),
    RELOCATION: (
        "patches/relocate",
        "patches/experts",
        "patches/dp",
        "toolkit/relocate",
        "toolkit/placement",
        "toolkit/launch/expert_maps.py",
        f"{_E2E}/test_relocation.py",
    ),
    PREEMPTION: (
        "patches/preempt",
        "patches/steps",
        "patches/pd",
        "toolkit/policies/preemption",
        f"{_E2E}/test_preempt.py",
        f"{_E2E}/test_preempt_answers.py",
    ),
    DETERMINISM: (
        "patches/cpu",
        "patches/move",
        "patches/pd",
        "patches/steps",
        f"{_E2E}/test_deterministic.py",
    ),
    DP_POLICIES: (
        "patches/dp",
        "patches/http",
        "patches/streams",
        "toolkit/policies",
        "toolkit/decide/record.py",
        "toolkit/decide/replay.py",
        f"{_E2E}/test_dp_policy.py",
        f"{_E2E}/test_balance.py",
        f"{_E2E}/test_dp_prefill.py",
    ),
    MOVING: (
        "patches/move",
        "patches/pd",
        "toolkit/cli",
        "toolkit/launch",
        "toolkit/router",
        "toolkit/decide",
        "toolkit/settings",
        f"{_E2E}/test_direct_moves.py",
        f"{_E2E}/test_moves.py",
        f"{_E2E}/moving.py",
    ),
    ELDR: (
        "patches/experts",
        "patches/streams",
        "toolkit/policies",
        "toolkit/router",
        "toolkit/decide",
        "toolkit/settings",
        "toolkit/signatures",
        f"{_UNIT}/router/eldr",
        f"{_E2E}/test_eldr.py",
    ),
    LAUNCHER: (
        "patches/cpu",
        "toolkit/cli",
        "toolkit/launch",
        "toolkit/settings",
        "toolkit/preloaded",
        f"{_E2E}/commands.py",
        f"{_E2E}/test_launch_command.py",
    ),
    WAITING: ("patches/pd", "patches/dp", f"{_E2E}/test_waiting_queue.py"),
    CPU_ENGINE: (
        "patches/cpu",
        "patches/cpu_stubs",
        "patches/experts",
        f"{_E2E}/test_cpu_shims.py",
        f"{_E2E}/test_architectures.py",
    ),
    SIGNATURES: (
        "patches/experts",
        "patches/pd",
        "patches/streams",
        "toolkit/signatures",
        f"{_E2E}/test_signatures.py",
    ),
    STAGES: (
        "patches/move",
        "toolkit/policies/stages",
        "toolkit/router",
        "toolkit/decide",
        "toolkit/settings",
        f"{_E2E}/test_stages.py",
    ),
    NETWORK: (
        "patches/http",
        "toolkit/front.py",
        "toolkit/launch",
        "toolkit/settings",
        "toolkit/loopback.py",
        f"{_E2E}/test_answers_on_ipv6.py",
        f"{_E2E}/test_isolated.py",
    ),
    KV_FAILURE: ("patches/pd", "toolkit/launch/command.py", f"{_E2E}/test_kv_failure.py"),
    HELD_UP: (
        "patches/streams",
        "patches/http",
        "toolkit/router",
        "toolkit/settings",
        f"{_E2E}/test_held_up.py",
    ),
    PROFILE: (
        "patches/experts",
        "patches/streams",
        "toolkit/cli/profile.py",
        "toolkit/placement",
        "toolkit/profile",
        "toolkit/profile_folder",
        "toolkit/signatures",
        f"{_E2E}/test_profile_command.py",
    ),
    BENCH: (
        "toolkit/bench",
        "toolkit/cli/bench.py",
        "toolkit/demo",
        f"{_E2E}/test_bench_command.py",
    ),
}
"""By part: files and folders of the checkout."""


def files(root: Path, part: str) -> List[Path]:
    """The files that a part tries. Raises FileNotFoundError where a path of the table is gone."""
    found = []
    for name in (*_EVERY, *PARTS[part]):
        path = root / name
        if path.is_dir():
            inside = [each for each in path.rglob("*") if each.is_file()]
            found += [each for each in inside if "__pycache__" not in each.parts]
        elif path.is_file():
            found.append(path)
        else:
            raise FileNotFoundError(f"{name}, of the part {part} (toolkit/setup/touched.py)")
    return sorted(found)


def digest(root: Path, part: str) -> str:
    """SHA-256 over the names and bytes of a part's files."""
    sums = hashlib.sha256()
    for path in files(root, part):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        sums.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return sums.hexdigest()


def recorded(root: Path) -> Dict[str, str]:
    """Part -> the digest with which it last passed; nothing where there is no record."""
    try:
        found: Dict[str, str] = json.loads((root / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def touched(root: Path) -> List[str]:
    """The parts that a change has to run."""
    known = recorded(root)
    return [part for part in PARTS if known.get(part) != digest(root, part)]


def now(root: Path, parts: Optional[Sequence[str]] = None) -> Dict[str, str]:
    """Part -> the digest of its files as they are."""
    return {part: digest(root, part) for part in (PARTS if parts is None else parts)}


def record(root: Path, passed: Dict[str, str]) -> None:
    """Say that these parts have passed with these digests."""
    known = {part: value for part, value in recorded(root).items() if part in PARTS}
    known.update(passed)
    text = json.dumps(known, indent=2, sort_keys=True) + "\n"
    (root / RECORD).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m toolkit.setup.touched", description=__doc__)
    words = [*sorted(PARTS), ALL]
    parser.add_argument("--record", nargs="+", choices=words, metavar="PART", help=", ".join(words))
    options = parser.parse_args(arguments)
    root = Path(__file__).resolve().parents[2]
    if options.record:
        record(root, now(root, None if ALL in options.record else options.record))
    changed = touched(root)
    for part in PARTS:
        word = "runs, its files have changed" if part in changed else "passed as it is"
        say.line(f"{part}: {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
