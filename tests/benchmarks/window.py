"""Every supported release of SGLang against the patches: contracts, a smoke test, the whole suite.

Contracts: in a process that imports the release, each symbol that a patch hooks or calls, and
whether all patches of each kind of process can be put in together. `--smoke RELEASE` and `--whole
RELEASE` also run end-to-end tests on real CPU workers of that release (SMOKE below; all of
`tests/e2e`), as `python3 -m toolkit.setup --sglang RELEASE test` would.

keys: `releases`, how many; `symbols`, of all of them together; `moved`: symbols that are not as
their patch expects; `refused`: patches that do not fit, of all releases. `contracts`: by release
the `variant` of each patch that has several, and its `problems`. `tests`: by release and kind
(`smoke`, `whole`) how many `passed`, `failed` (with their names) and were `skipped`, and `seconds`.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_rounds import say
from tests.releases import fetch
from tests.releases.contract import ALL_TOGETHER
from tests.sglang_python import PROJECT
from toolkit.setup import layout, releases
from toolkit.setup.releases import PROVEN
from toolkit.setup.scopes import DEFAULT, SCOPE
from toolkit.setup.testing import TWO

MEASURES = ("patches", "tests/releases")

SMOKE = (
    "tests/e2e/test_equality.py",
    "tests/e2e/test_signatures.py",
    "tests/e2e/test_first_token.py",
    "tests/e2e/test_dp_policy.py",
    "tests/e2e/test_waiting_queue.py::test_prefill_workers_with_late_dispatch",
)
"""Answers equal to a plain server's (50 prompts, three ways), late binding, signatures, first
tokens from prefill, policies that choose DP ranks, prefill workers whose slots are all taken."""


def contracts() -> dict[str, Any]:
    """The figures of all releases."""
    found: dict[str, Any] = {}
    symbols = moved = 0
    refused: set[tuple[str, str]] = set()
    for release in PROVEN:
        verdicts = fetch.contract(release)
        problems = [each for each in verdicts if each.problem]
        symbols += sum(each.patch != ALL_TOGETHER for each in verdicts)
        moved += len(problems)
        refused |= {(release, each.patch) for each in problems}
        found[release] = {
            "variant": {each.patch: each.variant for each in verdicts if each.variant},
            "problems": [f"{each.patch}: {each.problem}" for each in problems],
        }
        say(f"{release}: {len(verdicts)} looked at, {len(problems)} problems")
    counted = {"releases": len(PROVEN), "symbols": symbols, "moved": moved}
    return {**counted, "refused": len(refused), "contracts": found}


def tested(release: str, tests: tuple[str, ...]) -> dict[str, Any]:
    """End-to-end tests on that release."""
    where = releases.ensure(layout.here(), release)
    own = releases.environment(where) | {SCOPE: DEFAULT}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", "-q", *TWO]
        command = [*pytest, f"--junitxml={report}", *tests]
        began = time.monotonic()
        subprocess.run(command, cwd=PROJECT, env=layout.tool_environment() | own, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - len(failed) - skipped
    took = time.monotonic() - began
    return {"passed": passed, "failed": failed, "skipped": skipped, "seconds": took}


def main() -> None:
    """Run it and print its line."""
    options = arguments(
        __doc__,
        ("--smoke", {"metavar": "RELEASE", "action": "append", "default": []}),
        ("--whole", {"metavar": "RELEASE", "action": "append", "default": []}),
        ("--no-contracts", {"action": "store_true", "help": "tests only"}),
    )
    result = Result()
    if not options.no_contracts:
        result.keys |= contracts()
    ran: dict[str, Any] = {}
    for kind, given in (("smoke", options.smoke), ("whole", options.whole)):
        for release in given:
            found = tested(release, SMOKE if kind == "smoke" else ("tests/e2e",))
            ran.setdefault(release, {})[kind] = found
            say(f"{release}: {kind}: {found}")
    if ran:
        result.keys["tests"] = ran
    result.emit(result.keys.get("symbols", 0))


if __name__ == "__main__":
    main()
