"""The relocator's own HTTP: what it does, orders to decide now, and metrics. On loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toolkit.relocate.errors import RelocationError

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client.core import Metric

    from toolkit.relocate.relocator import Relocator

PREFIX = "toolkit_relocate_"
PATIENCE_S = 600.0


class Collector:
    """A relocator's figures, as Prometheus reads them."""

    def __init__(self, relocator: Relocator) -> None:
        self._relocator = relocator

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures = self._relocator.figures
        decisions = CounterMetricFamily(
            PREFIX + "decisions", "Decisions, by what came of them", labels=["outcome"]
        )
        for outcome, count in figures.decisions.items():
            decisions.add_metric([outcome], count)
        yield decisions
        for name, text, value in (
            ("orders", "Orders that the server has carried out", figures.orders),
            ("slots", "Slots that got another expert", figures.slots),
            ("bytes", "Bytes of weights that crossed ranks", figures.bytes),
            ("stall_seconds", "Seconds for which the server stood still", figures.stall_s),
            ("stale", "Orders that somebody else was quicker than", figures.stale),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value=value)
        longest = figures.longest_s
        yield GaugeMetricFamily(PREFIX + "longest_stall_seconds", "The longest", value=longest)
        if self._relocator.decided:
            last = self._relocator.decided[-1]
            for name, text, value in (
                ("balance", "Busiest GPU over mean when last decided", last["balance"][0]),
                ("balance_predicted", "The same under the fitted map", last["balance"][1]),
                ("gain_predicted", "Share of an expert layer's time", last["gain"]),
            ):
                yield GaugeMetricFamily(PREFIX + name, text, value=value)


def make(relocator: Relocator) -> web.Application:
    """The application; the relocator is not started by it."""
    from aiohttp import web
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(Collector(relocator))

    async def status(request: web.Request) -> web.Response:
        return web.json_response(relocator.status())

    async def decide(request: web.Request) -> web.Response:
        body: Any = None
        with contextlib.suppress(ValueError):
            body = await request.json()
        if not isinstance(body, dict) or set(body) - {"dry_run"}:
            return web.json_response(
                {"error": 'the body must be {} or {"dry_run": true}'}, status=400
            )
        if not isinstance(body.get("dry_run", False), bool):
            return web.json_response({"error": '"dry_run" must be true or false'}, status=400)
        try:
            async with asyncio.timeout(PATIENCE_S):
                told = await relocator.ask(body.get("dry_run", False))
        except RelocationError as error:
            return web.json_response({"error": str(error)}, status=409)
        except TimeoutError:
            return web.json_response({"error": f"no decision in {PATIENCE_S:g} s"}, status=504)
        return web.json_response(told)

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/", status)
    app.router.add_post("/relocate", decide)
    app.router.add_get("/metrics", metrics)
    return app
