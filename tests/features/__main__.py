"""Try each system beside what else SGLang can do: by the launcher's checks, and with real workers.

    python -m tests.features [NAME ...] [--release R] [--dry-run] [--record]

Of each feature: what `toolkit launch --dry-run` says of it with each system on GPUs; then, where
SGLang can do it on a CPU, real workers with all systems on, each of them seen at work, and every
token compared with the model's own. `--record` appends what came of it to results/features.jsonl,
of which the table in the documents is made. About four minutes each on two cores.

`--release`: with another release of SGLang than the pinned one, recorded in
results/features_releases.jsonl.
"""

import argparse
import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.shared import common
from tests.e2e.reference import Reference
from tests.features import dry, real
from tests.features.described import FEATURES, SYSTEMS
from tests.releases import fetch
from tests.sglang_python import PROJECT

PINNED = version("sglang")


def main() -> None:
    """Run it and print a line for each cell, then one JSON object."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.features",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = {feature.name: feature for feature in FEATURES}
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--record", action="store_true", help="append to results/")
    parser.add_argument("--dry-run", action="store_true", help="start no worker")
    parser.add_argument("--release", choices=sorted({*fetch.FITTED} - {PINNED}), help="of SGLang")
    given = parser.parse_args()
    if given.release is not None:  # for every process that this one starts
        places = (str(fetch.place(given.release)), str(PROJECT))
        os.environ["PYTHONPATH"] = os.pathsep.join(places)
    unknown = sorted(set(given.names) - set(known))
    if unknown:
        parser.error(f"no feature {', '.join(unknown)}; there are {', '.join(known)}")
    made_of = common.commit()
    chosen = [known[name] for name in given.names or known]
    told = dry.told([FEATURES[0], *chosen])
    found: dict[str, dict[str, dict[str, str]]] = {}
    reference = None if given.dry_run else Reference()
    for feature in chosen:
        found[feature.name] = {"gpu": {system: told[feature.name, system] for system in SYSTEMS}}
        if feature.cpu is not None and reference is not None:
            with tempfile.TemporaryDirectory(prefix="features-") as folder:
                on_gpus = found[feature.name]["gpu"]
                found[feature.name]["cpu"] = real.tried(feature, on_gpus, Path(folder), reference)
        for where, cells in found[feature.name].items():
            for system, said in cells.items():
                print(f"{feature.name:36} {where} {system:25} {said}", flush=True)
    print(json.dumps(found))
    if given.record:
        command = " ".join(["tests.features", *sys.argv[1:]])
        if given.release is None:
            common.record("features", found, command, common.RESULTS, made_of)
        else:
            figures = {"release": given.release, "features": found}
            common.record("features_releases", figures, command, common.RESULTS, made_of)
    if any(real.failed(cells) for places in found.values() for cells in places.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
