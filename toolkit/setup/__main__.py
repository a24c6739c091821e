"""`python3 -m toolkit.setup demo | test | lint | coverage | --check`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import List, Optional

from toolkit.setup import checks, environment, layout, libraries, releases, say, scopes, testing

_DESCRIPTION = """\
Sets the project up in .venv (quick the second time), then:
  demo   starts 1 prefill + 4 decode workers and the router on the CPU, shows requests being
         answered, compares two policies, stops everything and names a page (`toolkit demo`)
  test   lint, types, unit and end-to-end tests; unknown arguments go to pytest
         --fast: no process with SGLang; --full: also what takes long and rarely
         breaks
  lint   the lint steps of `test` alone
  coverage
         what the unit tests run of toolkit/decide and toolkit/policies, by branch
"""

MODULES = {"demo": ("toolkit", "demo"), "coverage": ("tests.benchmarks.branch_coverage",)}
"""Actions that are a command of their own, run with the environment's Python."""


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m toolkit.setup",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("action", nargs="?", choices=["test", "lint", *MODULES], help="see above")
    parser.add_argument("--check", action="store_true", help="only say what is missing here")
    parser.add_argument(
        "--sglang", metavar="RELEASE", help="with that release, fetched beside the pinned one"
    )
    parser.add_argument("--unit-only", action="store_true", help="test: no real workers")
    scope = parser.add_mutually_exclusive_group()
    for name, told in ((scopes.FAST, "test: without SGLang"), (scopes.FULL, "test: everything")):
        scope.add_argument(f"--{name}", action="store_const", dest="scope", const=name, help=told)
    parser.set_defaults(scope=scopes.DEFAULT)
    known, extra = parser.parse_known_args(arguments)
    if extra and known.action is None:
        parser.error(f"unknown arguments: {' '.join(extra)}")
    known.extra = extra
    return known


def check(place: layout.SetupLayout) -> int:
    """Prints what stands between this machine and the demo. 0: nothing does."""
    filled = (place.site_packages / "torch").is_dir()
    problems = checks.machine_problems(place.root, installed=filled)
    absent = libraries.missing()
    for problem in problems:
        say.line(f"{'missing' if problem.fatal else 'careful'}: {problem.text}")
    if absent:
        say.line(f"missing: system libraries ({' '.join(absent)})")
        if os.geteuid() == 0 and shutil.which("apt-get"):
            say.line("  the set-up installs them itself, being root")
            absent = []
    if environment.ready(place):
        say.line(f"{place.venv} is set up")
    else:
        say.line(f"{place.venv} is to be set up (a minute or two, 2.7 GB)")
    return 1 if absent or any(problem.fatal for problem in problems) else 0


def other_python() -> Optional[str]:
    """A Python of the right version on PATH, when the one that runs now is not."""
    if checks.check_python(sys.version_info[:3]) is None:
        return None
    return next(filter(None, (shutil.which(f"python3.{minor}") for minor in (11, 12))), None)


def main(arguments: List[str]) -> int:
    better = other_python()
    if better is not None and "TOOLKIT_SETUP_REEXEC" not in os.environ:
        say.line(f"this Python is {sys.version.split()[0]}: going on with {better}")
        os.environ["TOOLKIT_SETUP_REEXEC"] = "1"  # a wrapper that lies must not make a loop
        os.execv(better, [better, "-m", "toolkit.setup", *arguments])
    options = parse(arguments)
    place = layout.here()
    os.chdir(place.root)
    if options.check:
        return check(place)
    try:
        environment.ensure(place)
        release = releases.ensure(place, options.sglang) if options.sglang else None
    except say.SetupError as error:
        say.problem(str(error))
        return 1
    if options.action == "test":
        return testing.run(place, options.unit_only, options.extra, options.scope, release)
    if options.action == "lint":
        return testing.lint(place)
    if options.action in MODULES:
        command = [str(place.python), "-m", *MODULES[options.action], *options.extra]
        sys.stdout.flush()
        variables = {**layout.tool_environment(), **releases.environment(release)}
        os.execve(command[0], command, variables)
    if release is not None:
        tell(place, release)
    return 0


def tell(place: layout.SetupLayout, release: Path) -> None:
    """How to use a release that was fetched."""
    say.line(f"SGLang {release.name} is at {release}. Any command runs with it so:")
    say.line(f"  PYTHONPATH={release} {place.venv}/bin/toolkit launch ...")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        say.problem("Interrupted. Run the same command again: it goes on where it stopped.")
        sys.exit(130)
