"""Two routers over the same stand-in workers: what it takes to reach a request at the other one.

- `own.abort_ms`, `other.abort_ms`: `POST /abort_request` of a stream that one router has, sent to
  that router and to the other one, until the answer says that it is aborted; `end_ms`: until the
  client of the stream has its end. `other.find_ms`: `GET /requests/ID` there.
- `centroids`: after a refit, until the other router has the centroids (`took_ms`), of so many
  workers and dimensions, in so many bytes.
- `idle`: over `idle.seconds` without requests, the notices that both routers sent, and the share of
  a core that one router takes beside another one and alone.

Medians and 90th percentiles in milliseconds. Nothing is asserted. Run as
`python -m tests.benchmarks.router_notices [--quick]`.
"""

import asyncio
import tempfile
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import aiohttp
import psutil

from tests.benchmarks.shared.common import Result, arguments, percentile
from tests.standin.cluster import Cluster
from tests.unit.router.eldr import cluster as sample
from toolkit.contract.variables import ROUTER_NAME_VARIABLE

MEASURES = ("toolkit/router/others", "toolkit/router/eldr", "toolkit/decide/notices.py")

STREAM = {"text": "hello", "sampling_params": {"max_new_tokens": 4000}, "stream": True}
SLOW = ["--token-ms", "20"]
WORKERS, LAYERS, EXPERTS = 24, 48, 128


async def until(at: Cluster, condition: Any) -> None:
    await at.until(condition)


async def both(one: Cluster, other: Cluster) -> None:
    """They know of each other."""
    for each in (one, other):
        await until(each, lambda state: {row.get("routers") for row in state["workers"]} == {2})


async def aborted(at: Cluster, owner: Cluster, rid: str) -> tuple[float, float, float]:
    """Seconds of an abort at one of the routers, until the stream has its end, and of a look."""
    async with owner.session.post(f"{owner.url}/generate", json=STREAM | {"rid": rid}) as stream:
        await stream.content.readany()
        begin = perf_counter()
        async with at.session.get(f"{at.admin}/requests/{rid}") as answer:
            assert answer.status == 200
        looked = perf_counter()
        ends = asyncio.ensure_future(end_of(stream))
        async with at.session.post(f"{at.url}/abort_request", json={"rid": rid}) as answer:
            assert (await answer.json())["aborted"] == 1
        answered = perf_counter()
        return answered - looked, await ends - looked, looked - begin


async def end_of(stream: aiohttp.ClientResponse) -> float:
    """When its client has it."""
    try:
        await stream.content.read()
    except aiohttp.ClientError:
        pass
    return perf_counter()


async def aborts(count: int) -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {"own": {}, "other": {}}
    async with Cluster(worker_args=SLOW) as one, Cluster(beside=one) as other:
        await both(one, other)
        taken: dict[str, list[tuple[float, float, float]]] = {"own": [], "other": []}
        for number in range(count):
            for where, at in (("own", one), ("other", other)):
                taken[where].append(await aborted(at, one, f"{where}-{number}"))
    for where, rows in taken.items():
        for name, values in zip(("abort", "end", "find"), zip(*rows, strict=True), strict=True):
            for percent in (50, 90):
                key = f"{name}_p{percent}_ms"
                figures[where][key] = percentile([each * 1e3 for each in values], percent)
    return figures


async def centroids(folder: Path, workers: int) -> dict[str, float]:
    """Of the largest profile that a recipe has: how long until the other router has a refit."""
    sample.LAYERS, sample.EXPERTS = LAYERS, EXPERTS
    sample.MASK, sample.MODEL_LAYERS = tuple(range(LAYERS)), tuple(range(LAYERS))  # type: ignore[assignment]
    sample.RECORDED = ",".join(map(str, range(LAYERS)))
    profile = sample.write_profile(folder / "profile", workers, 10 * workers)
    rank = {"decode": {"dp_size": workers}}
    args = {"decode": ["--dp-size", str(workers)]}

    def router(name: str, **more: Any) -> Cluster:
        env = {ROUTER_NAME_VARIABLE: name}
        return sample.eldr_cluster(profile, 1, env=env, role_config=rank, role_args=args, **more)

    async with router("a") as one, router("b", beside=one) as other:
        await both(one, other)
        await until(other, lambda state: not state["eldr"]["fits_here"])
        await sample.Traffic(one).many([4, 5, 6, 7] * 40)
        took: list[float] = []
        before = (await one.state())["eldr"]["version"]
        for _ in range(5):
            status, told = await sample.admin(one, "refit", {"force": True})
            assert status == 200, told
            begin, fitted = perf_counter(), (await one.state())["eldr"]["version"]
            assert fitted != before or took
            await until(other, lambda state, fitted=fitted: state["eldr"]["version"] == fitted)
            took += [(perf_counter() - begin) * 1e3]
            await sample.Traffic(one, seed=len(took) + 1).many([4, 5, 6, 7] * 10)
    return {
        "workers": workers, "dimensions": LAYERS * EXPERTS, "bytes": 4 * workers * LAYERS * EXPERTS,
        "took_p50_ms": percentile(took, 50), "took_max_ms": max(took),
    }  # fmt: skip


async def idle(seconds: float) -> dict[str, float]:
    """What routers say and cost that have nothing to do."""

    async def cost(router: Cluster) -> float:
        assert router.router is not None
        process, begin = psutil.Process(router.router.pid), monotonic()
        before = process.cpu_times()
        await asyncio.sleep(seconds)
        after = process.cpu_times()
        spent = after.user - before.user + after.system - before.system
        return spent / (monotonic() - begin)

    async with Cluster(decodes=4) as one:
        await asyncio.sleep(1.0)
        alone = await cost(one)
        async with Cluster(beside=one) as other:
            await both(one, other)
            await asyncio.sleep(1.0)
            beside = await cost(one)
            sent = 0.0
            for each in (one, other):
                figures = await sample.metrics(each)
                sent += sum(n for name, n in figures.items() if name.startswith("notices_total"))
    return {"seconds": seconds, "alone_core": alone, "beside_core": beside, "notices": sent}


async def main(quick: bool) -> None:
    result = Result()
    count = 10 if quick else 100
    result.keys |= await aborts(count)
    with tempfile.TemporaryDirectory() as folder:
        result.keys["centroids"] = await centroids(Path(folder), 4 if quick else WORKERS)
    result.keys["idle"] = await idle(2.0 if quick else 20.0)
    result.emit(count)


if __name__ == "__main__":
    asyncio.run(main(arguments(__doc__).quick))
