"""The relocator's own HTTP: what it does, orders to decide now, and metrics. On loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from toolkit.relocate.errors import RelocationError

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client.core import Metric

    from toolkit.relocate.relocator import Relocator

PREFIX = "toolkit_relocate_"
WAIT_LIMIT_S = 600.0


class Collector:
    """The figures of relocators by server, as Prometheus reads them."""

    def __init__(self, relocators: Mapping[str, Relocator]) -> None:
        self._relocators = relocators

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures = {name: each.figures for name, each in self._relocators.items()}
        decisions = CounterMetricFamily(
            PREFIX + "decisions",
            "Decisions, by what came of them",
            labels=["server", "outcome"],
        )
        for name, own in figures.items():
            for outcome, count in own.decisions.items():
                decisions.add_metric([name, outcome], count)
        yield decisions
        for metric, of, text in (
            ("orders", "orders", "Orders that the server has carried out"),
            ("slots", "slots", "Slots that got another expert"),
            ("bytes", "bytes", "Bytes of weights that crossed ranks"),
            ("stall_seconds", "stall_s", "Seconds for which the server stood still"),
            ("stale", "stale", "Orders that somebody else was quicker than"),
            ("dropped_frames", "dropped", "Frames of experts that were read too slowly"),
        ):
            total = CounterMetricFamily(PREFIX + metric, text, labels=["server"])
            for name, own in figures.items():
                total.add_metric([name], getattr(own, of))
            yield total
        longest = GaugeMetricFamily(
            PREFIX + "longest_stall_seconds", "The longest", labels=["server"]
        )
        for name, own in figures.items():
            longest.add_metric([name], own.longest_s)
        yield longest
        last = {name: each.decided[-1] for name, each in self._relocators.items() if each.decided}
        gauges: tuple[tuple[str, str, Callable[[dict[str, Any]], float]], ...] = (
            ("balance", "Busiest GPU over mean when last decided", lambda d: d["balance"][0]),
            ("balance_predicted", "The same under the fitted map", lambda d: d["balance"][1]),
            ("gain_predicted", "Share of an expert layer's time", lambda d: d["gain"]),
        )
        for of, text, value in gauges:
            gauge = GaugeMetricFamily(PREFIX + of, text, labels=["server"])
            for name, decided in last.items():
                gauge.add_metric([name], value(decided))
            yield gauge


async def decisions_of(chosen: Mapping[str, Relocator], dry_run: bool) -> dict[str, Any]:
    """A decision on each; `error` in place of one that there was not."""

    async def one(relocator: Relocator) -> dict[str, Any]:
        try:
            async with asyncio.timeout(WAIT_LIMIT_S):
                return await relocator.ask(dry_run)
        except RelocationError as error:
            return {"error": str(error)}
        except TimeoutError:
            return {"error": f"no decision in {WAIT_LIMIT_S:g} s"}

    told = await asyncio.gather(*(one(each) for each in chosen.values()))
    return dict(zip(chosen, told, strict=True))


def make(relocators: Mapping[str, Relocator]) -> web.Application:
    """The application; the relocators, by server, are not started by it."""
    from aiohttp import web
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(Collector(relocators))

    async def status(request: web.Request) -> web.Response:
        return web.json_response({name: each.status() for name, each in relocators.items()})

    async def decide(request: web.Request) -> web.Response:
        body: Any = None
        with contextlib.suppress(ValueError):
            body = await request.json()
        if not isinstance(body, dict) or set(body) - {"dry_run", "server"}:
            wanted = 'the body must be {} or {"dry_run": true, "server": "decode-0"}'
            return web.json_response({"error": wanted}, status=400)
        if not isinstance(body.get("dry_run", False), bool):
            return web.json_response({"error": '"dry_run" must be true or false'}, status=400)
        server = body.get("server")
        chosen = {name: each for name, each in relocators.items() if server in (None, name)}
        if not chosen:
            known = ", ".join(relocators)
            return web.json_response({"error": f'"server" must be one of {known}'}, status=400)
        told = await decisions_of(chosen, body.get("dry_run", False))
        failed = all("error" in each for each in told.values())
        return web.json_response(told, status=409 if failed else 200)

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/", status)
    app.router.add_post("/relocate", decide)
    app.router.add_get("/metrics", metrics)
    return app
