"""Try architectures that users serve: a dry run, and tiny models with real workers on the CPU.

    python -m tests.architectures [NAME ...] [--record]

Of each: `toolkit launch --dry-run` of a CUDA and a CPU deployment; then a plain SGLang server and a
deployment of one prefill and two decode workers with the same random weights. What is compared
stands in `tests.architectures.trial`. `--record` appends what came of it to
results/architectures.jsonl, of which the documents' table is made. About two minutes each on two
cores.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.architectures import runner
from tests.architectures.configs import ARCHITECTURES
from tests.benchmarks.shared import common


def main() -> None:
    """Run it and print a line for each, then one JSON object."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.architectures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ARCHITECTURES))
    parser.add_argument("--record", action="store_true", help="append to results/")
    parser.add_argument("--hicache", action="store_true", help="hierarchical cache instead")
    parser.add_argument("--dry-run", action="store_true", help="start no worker")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(ARCHITECTURES))
    if unknown:
        parser.error(f"no architecture {', '.join(unknown)}; there are {', '.join(ARCHITECTURES)}")
    made_of = common.commit()
    found = {}
    for name in given.names or ARCHITECTURES:
        with tempfile.TemporaryDirectory(prefix=f"architecture-{name}-") as folder:
            of, place = ARCHITECTURES[name], Path(folder)
            found[name] = (
                runner.cached(of, place)
                if given.hicache
                else runner.tried(of, place, given.dry_run)
            )
        for cell, said in found[name].items():
            print(f"{name:12} {cell:14} {said}", flush=True)
    print(json.dumps(found))
    if given.record:
        command = " ".join(["tests.architectures", *sys.argv[1:]])
        name = "hicache" if given.hicache else "architectures"
        common.record(name, found, command, common.RESULTS, made_of)
    if any(runner.failed(cells) for cells in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
