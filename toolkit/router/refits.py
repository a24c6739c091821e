"""Running a refit in a short-lived process, and the memory that it reads its signatures from."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from toolkit.router.centroid_sets import Rows
from toolkit.router.refit_job import UNFIT
from toolkit.signatures.calibrated import Requests
from toolkit.signatures.nearness import Nearness

T = TypeVar("T")

TIMEOUT_S = 300.0
NICE = 10
"""For refits that nobody waits for: decode workers on the same cores go first."""


class RefitError(RuntimeError):
    """A refit came to nothing; the message says why. `hopeless`: so will the same one again."""

    def __init__(self, message: str, hopeless: bool = False) -> None:
        super().__init__(message)
        self.hopeless = hopeless


class Base:
    """The signatures that refits for other sets of workers cluster, outside the router's heap.

    They lie in a memfd that refit processes inherit: nothing is copied, and nothing is left behind
    when the router is killed.
    """

    def __init__(self, requests: Requests) -> None:
        self.dimensions = int(requests.fitted.shape[1])
        self.fd = _memory({"fitted": requests.fitted, "judged": requests.judged})

    def close(self) -> None:
        os.close(self.fd)


def _memory(arrays: dict[str, Any]) -> int:
    """A memfd with an .npz, at its beginning."""
    fd = os.memfd_create("toolkit-refit")
    try:
        with os.fdopen(fd, "wb", closefd=False) as stream:
            np.savez(stream, **arrays)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


async def in_thread(make: Callable[[], T], drop: Callable[[T], object]) -> T:
    """`make()` off the loop. When nobody waits for it any more, `drop` takes what comes of it."""
    making = asyncio.ensure_future(asyncio.to_thread(make))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(lambda done: drop(done.result()))
        raise


async def _start(
    arrays: dict[str, Any], nice: int, inherited: tuple[int, ...]
) -> asyncio.subprocess.Process:
    given = await in_thread(lambda: _memory(arrays), os.close)
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "toolkit.router.refit_job", str(os.getpid()), str(nice)),
            stdin=given,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=inherited,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    finally:
        os.close(given)


async def run_job(
    job: dict[str, Any], arrays: dict[str, Any], base: Base | None = None, nice: int = NICE
) -> dict[str, NDArray[Any]]:
    """What `toolkit.router.refit_job` answers. Cancelling it ends the process.

    Raises:
        RefitError: the process failed, was killed or took too long.
    """
    inherited = () if base is None else (base.fd,)
    if base is not None:
        job = {**job, "base": base.fd}
    try:
        process = await _start({"job": np.array(json.dumps(job)), **arrays}, nice, inherited)
    except OSError as error:  # no memory, no process to be had
        raise RefitError(f"it could not be started: {error}") from error
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise RefitError(f"it took longer than {TIMEOUT_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        said = errors.decode(errors="replace").strip().splitlines()
        ended = f"its process ended with {process.returncode}"
        raise RefitError(said[-1] if said else ended, process.returncode == UNFIT)
    with np.load(io.BytesIO(output)) as result:
        return dict(result)


async def fit_rows(
    base: Base, sizes: Iterable[int], seed: int, nice: int = NICE
) -> dict[int, Rows]:
    """Centroids for each number of workers in `sizes`; of several, not for those above the number
    of requests. RefitError: see `run_job`."""
    wanted = sorted(sizes)
    result = await run_job({"kind": "workers", "sizes": wanted, "seed": seed}, {}, base, nice)
    fitted = {}
    for k in (k for k in wanted if f"rows_{k}" in result):
        cosine, workers = result[f"expected_{k}"].tolist()
        expected = Nearness(cosine, None if math.isnan(workers) else workers)
        fitted[k] = Rows(np.ascontiguousarray(result[f"rows_{k}"]), expected)
    return fitted
