"""`python -m toolkit.router.eldr.refit_job ROUTER_PID NICE`: one refit, then it is over.

A process of its own, since a refit is a second of numpy and scipy that the router's loop must not
wait for, nor its memory keep. The job is an .npz on standard input, the result one on standard
output; "job" in it is JSON: {"kind": "workers" | "recent" | "clock", ...}, see `fit_workers`,
`fit_recent` and `fit_clock`. It dies with its router, however that ends.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

PR_SET_PDEATHSIG = 1
UNFIT = 3
"""Exit status for data that cannot be fitted."""


def main() -> int:
    parent, nice = (int(word) for word in sys.argv[1:3])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        return 1
    os.nice(nice)
    import numpy as np

    with np.load(sys.stdin.buffer) as given:
        arrays = dict(given)
    job = json.loads(str(arrays.pop("job")))
    try:
        kinds = {"workers": fit_workers, "recent": fit_recent, "clock": fit_clock}
        result = kinds[job["kind"]](job, arrays)
    except ValueError as error:  # the message says what is wrong with the data
        print(error, file=sys.stderr)
        return UNFIT
    buffer = io.BytesIO()
    np.savez(buffer, **result)
    sys.stdout.buffer.write(buffer.getbuffer())
    return 0


def fit_workers(job: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Balanced centroids for each number of workers in `sizes`, from the file `base`.

    Gives `rows_k` [k, D] and `expected_k`, the `Nearness` of held-out requests (NaN for None), for
    each k; of several, not for those that the requests are too few for. Which worker takes which
    row is not asked here. No scipy: its import alone takes longer than clustering a few hundred
    requests, and a worker may be gone.
    """
    import numpy as np

    from toolkit.signatures.clusters import fresh_centroids
    from toolkit.signatures.nearness import nearness

    with np.load(f"/proc/self/fd/{job['base']}") as base:
        fitted, judged = base["fitted"], base["judged"]
    result: dict[str, Any] = {}
    for k in job["sizes"]:
        if k > len(fitted) and len(job["sizes"]) > 1:
            continue
        rows = fresh_centroids(fitted, k, job["seed"])
        near = nearness(judged, rows)
        result[f"rows_{k}"] = rows
        result[f"expected_{k}"] = np.array([near.cosine, near.workers], dtype=np.float64)
    return result


def fit_recent(job: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """`refit_recent` of requests `counts` [n, D] and `tokens` [n], with `old` [K, D], in the space
    of `weights` [L, E] and `layers`. Gives `centroids` [K, D], and the other fields of `Refit` as
    JSON in `refit`."""
    import dataclasses

    import numpy as np

    from toolkit.signatures import SignatureSpace
    from toolkit.signatures.refits import refit_recent
    from toolkit.signatures.reservoir import Recent

    space = SignatureSpace(arrays["weights"], tuple(job["layers"]))
    recent = Recent(arrays["counts"], arrays["tokens"])
    refit = refit_recent(space, recent, arrays["old"], job["seed"])
    fields = [field.name for field in dataclasses.fields(refit) if field.name != "centroids"]
    figures = json.dumps({name: getattr(refit, name) for name in fields})
    return {"centroids": refit.centroids, "refit": np.array(figures)}


def fit_clock(job: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """`warm_refit` of `signatures` [N, D] from `old` [K, D]: `centroids` [K, D]. No scipy."""
    from toolkit.signatures.online import warm_refit

    return {"centroids": warm_refit(arrays["signatures"], arrays["old"])}


if __name__ == "__main__":
    sys.exit(main())
