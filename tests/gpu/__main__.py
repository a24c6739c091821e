"""`python -m tests.gpu`: what a CUDA device alone can show, step by step, and the parcels for it.

Without --pack, --unpack, --plan or --list-lines it runs the steps. Exit status 0: all are done and
right; 1: one failed; 2: no CUDA device; 3: time was up before all were begun, or parcels are still
to come.
"""

import argparse
import os
import sys
from pathlib import Path

from tests.gpu import lines, plan
from tests.gpu.errors import GpuCheckError
from tests.gpu.packing.wanted import ARCHITECTURES, SGLANG

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "gpu"
CACHE = Path.home() / ".cache" / "toolkit-gpu-wheels"


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pack", type=Path, metavar="DIR", help="make parcels of wheels there")
    what.add_argument("--unpack", type=Path, metavar="DIR", help="a parcel, or a folder of them")
    what.add_argument("--plan", action="store_true", help="the steps in order of worth")
    what.add_argument("--list-lines", action="store_true", help="GPU-only lines, and who runs them")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where --unpack puts packages")
    parser.add_argument("--sglang", default=SGLANG, help=f"--pack: release [{SGLANG}]")
    parser.add_argument("--arch", choices=ARCHITECTURES, default="sm90", help="--pack: kernels of")
    parser.add_argument("--parcel-mib", type=float, default=60.0, help="--pack: at most [60]")
    parser.add_argument("--cache", type=Path, default=CACHE, help="--pack: downloaded wheels")
    add = parser.add_argument_group("the run").add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--tiny", action="store_true", help="sizes for a test of the steps; figures mean nothing")
    add("--out", type=Path, default=RESULTS, help="where each step's JSON goes [results/gpu]")
    add("--scratch", type=Path, help="models and logs [OUT/scratch.measuring]")
    add("--packages", type=Path, metavar="FOLDER", help="what --unpack has filled")
    add("--steps", default="", metavar="A,B", help="these only")
    add(
        "--again",
        action="append",
        default=[],
        metavar="STEP",
        help="or `failed`",
    )
    add(
        "--together",
        action="store_true",
        help="start the steps at once; they measure in turns",
    )
    add("--limit-s", type=float, default=540.0, help="seconds of the whole run [540]")
    return parser


def packed(given: argparse.Namespace) -> int:
    from tests.gpu.packing import pack

    made = pack.pack(given.pack, given.sglang, given.arch, given.parcel_mib, given.cache)
    print("\n".join(pack.report(made, ROOT)))
    return 0


def unpacked(given: argparse.Namespace) -> int:
    from tests.gpu.packing import libraries, unpack

    if given.into is None:
        raise GpuCheckError("--unpack DIR needs --into FOLDER")
    state = unpack.unpack(given.unpack, given.into, ROOT)
    print(f"{state.done} files are unpacked in {given.into}")
    for group, count in state.left.items():
        print(
            f"of {group} {count} are left: their parcels {', '.join(state.parcels)} have not come"
        )
    environment = unpack.environment(given.into, ROOT)
    for name, users in libraries.missing(given.into, environment).items():
        print(f"missing on this machine: {name}, which {users[0]} is linked with")
    for name, value in environment.items():
        print(f"export {name}={value}")
    return 0 if state.whole else 3


def chosen(names: str) -> list[plan.Step]:
    """In order of worth, in whatever order they are named. GpuCheckError: a name is none."""
    wanted = [name for name in names.split(",") if name]
    known = [step.name for step in plan.STEPS]
    if unknown := [name for name in wanted if name not in known]:
        raise GpuCheckError(f"{unknown[0]} is none of {', '.join(known)}")
    return [step for step in plan.STEPS if not wanted or step.name in wanted]


def ran(given: argparse.Namespace) -> int:
    from tests.gpu import facts, run
    from tests.gpu.packing import unpack

    steps = chosen(given.steps)
    chosen(",".join(name for name in given.again if name != "failed"))
    environment = {}
    if given.packages is not None:
        before = os.environ.get("PYTHONPATH", "")
        environment = unpack.environment(given.packages, ROOT, before)
    if given.device == "cuda" and (problem := facts.cuda_problem()):
        print(
            f"gpu: there is no CUDA device: {problem}. Nothing was run. "
            "(`--device cpu --tiny` tries the steps' code here, and measures nothing.)",
            file=sys.stderr,
        )
        return 2
    scratch = given.scratch or given.out / "scratch.measuring"
    settings = run.Settings(
        given.device, given.tiny, given.out.absolute(), scratch.absolute(), given.limit_s,
        environment,
    )  # fmt: skip
    if given.together:
        return run.run_together(steps, settings).status
    return run.run(steps, settings, given.again).status


def main(arguments: list[str]) -> int:
    parser = options()
    given = parser.parse_args(arguments)
    try:
        if given.pack is not None:
            return packed(given)
        if given.unpack is not None:
            return unpacked(given)
        if given.plan:
            print("\n".join(plan.table()))
            return 0
        if given.list_lines:
            print("\n".join(lines.as_text(lines.table())))
            return 0
        return ran(given)
    except GpuCheckError as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main(sys.argv[1:]))
