"""What the router tells: its health, its workers, its metrics, its workers' models."""

from __future__ import annotations

from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any

from aiohttp import web

from toolkit.router import fleet_figures, policy_figures, stage_figures
from toolkit.router.about_workers import for_client
from toolkit.router.asks import AskFigures, added, ask_all, percentiles_ms
from toolkit.router.errors import ApiError
from toolkit.router.events import answer
from toolkit.router.guard import CALLER
from toolkit.router.moves import described
from toolkit.router.own_answers import as_json, refusal
from toolkit.router.own_name import own_name, shown
from toolkit.router.places import without_places_in
from toolkit.router.unserved import answered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from toolkit.router.active_policies import ActivePolicies
    from toolkit.router.asks import RequestFigures
    from toolkit.router.control_plane import ControlPlane
    from toolkit.router.draining import Draining
    from toolkit.router.guard import Guard
    from toolkit.router.known_workers import KnownWorkers

METRICS_SHARE = 0.05
"""Of the event loop's time: who asks for /metrics more often gets those of a moment ago. It is open
to everybody, and takes a ms and more."""
PROXIED = ("/v1/models", "/get_model_info", "/model_info", "/get_server_info", "/server_info")


class RouterHealth:
    """Whether the router serves, and what its workers say of themselves."""

    def __init__(self, known_workers: KnownWorkers, draining: Draining) -> None:
        self._known_workers = known_workers
        self._draining = draining

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/health", self.health)
        app.router.add_get("/readiness", self.readiness)
        for path in PROXIED:
            app.router.add_get(path, self.proxy)
        app.router.add_get("/v1/models/{model:.*}", self.proxy)

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readiness(self, _: web.Request) -> web.Response:
        why = "draining" if self._draining.on else fleet_figures.why_not_ready(self._known_workers)
        if not why:
            return web.Response(text="ready")
        return web.Response(status=503, text=why, headers={"Retry-After": "2"})

    async def proxy(self, request: web.Request) -> web.Response:
        """From the first healthy worker that answers; the admin sees all of it."""
        for worker in self._known_workers.workers:
            if not worker.healthy:
                continue
            status, body, headers = await answer(worker, request.raw_path)
            if status <= 0:
                continue
            shown = body if request[CALLER].admin else for_client(request.path, status, body)
            if shown is None:
                return refusal(502, "The worker's answer is not a JSON object.")
            return web.Response(
                status=status, body=shown, content_type="application/json", headers=headers
            )
        return answered(ApiError(503, "No healthy worker.", retry_after=2), request.path)


class Overview:
    """All that is known of workers and of the requests on them."""

    def __init__(self, guard: Guard, control: ControlPlane) -> None:
        self._guard = guard
        self._control = control

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/workers", self.workers)

    async def workers(self, request: web.Request) -> web.Response:
        """With `?lengths=1` also (prompt, KV tokens, rank) of every request that decodes. Addresses
        are for those whom the guard lets see them."""
        control, guard = self._control, self._guard
        known_workers, policies, switches = (
            control.known_workers, control.policies, control.switches,
        )  # fmt: skip
        locality, decider = control.locality, known_workers.decider
        lengths = request.query.get("lengths") == "1"
        figures: RequestFigures = added(await ask_all(control.planes, AskFigures(lengths)))
        now, addresses = monotonic(), guard.shows_addresses(request)
        rows = [
            r.describe(now)
            | {"back_in_s": known_workers.back_in_s(w, now)}
            | stage_figures.of_rank(known_workers, r)
            for w in known_workers.workers
            for r in w.ranks
        ]
        for row in rows if not addresses else ():
            del row["url"]
            if "why" in row:
                row["why"] = without_places_in(row["why"])
        return as_json(
            {
                "workers": rows,
                "dispatch": policies.dispatch,
                "first_token": switches.first_token,
                "early_choice": switches.early_choice,
                "policies": policies.names,
                "running": figures.running,
                "queued": figures.queued,
                "parked": decider.attempts.parked,
                "held_bytes": figures.held_bytes,
                **_figures(policies),
                **({} if locality is None else {"eldr": locality.describe()}),
                "empty_roles": known_workers.empty_roles(),
                "pairs": fleet_figures.pairs(decider.choosing.pairs, now),
                "poison": dict(decider.attempts.retries.poisoned),
                "resumed": figures.resumed,
                "retried": figures.retried,
                "moves": described(figures.moves, switches.moves),
                **stage_figures.of_passes(decider.moves),
                **({"lengths": figures.lengths} if lengths else {}),
                "draining": control.draining.on,
                "router": shown(own_name(), request[CALLER].admin),
                "admin": guard.admin_url if addresses else None,
                "timing": _timing(figures, control.metrics.transfers),
            }
        )


class MetricsPage:
    """The page for Prometheus."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._page = b""
        self._until = 0.0

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/metrics", self.metrics)

    async def metrics(self, _: web.Request) -> web.Response:
        now = monotonic()
        if now >= self._until:
            begin = thread_time()
            figures: RequestFigures = added(await ask_all(self._control.planes, AskFigures()))
            self._page = self._now(figures)
            self._until = now + (thread_time() - begin) / METRICS_SHARE
        return web.Response(body=self._page, headers={"Content-Type": "text/plain; version=0.0.4"})

    def _now(self, figures: RequestFigures) -> bytes:
        metrics, known_workers = self._control.metrics, self._control.known_workers
        metrics.running.set(figures.running)
        metrics.queued.set(figures.queued)
        metrics.parked.set(known_workers.decider.attempts.parked)
        for worker in known_workers.workers:
            metrics.healthy.labels(worker.name).set(worker.healthy)
            for rank in worker.ranks:
                metrics.inflight.labels(worker.name, str(rank.dp_rank)).set(rank.inflight)
                metrics.held.labels(worker.name, str(rank.dp_rank)).set(rank.held)
        return metrics.text()


def _timing(figures: RequestFigures, transfers: Iterable[float]) -> dict[str, dict[str, float]]:
    """p50, p90 and p99 of each part of the last requests, and of KV transfers, in milliseconds."""
    parts = {**figures.seconds, "transfer": transfers}
    told = {f"{name}_ms": percentiles_ms(seconds) for name, seconds in parts.items()}
    return {name: each for name, each in told.items() if each}


def _figures(policies: ActivePolicies) -> dict[str, Any]:
    """Pool, balance, and what policies count; what a deployment does not have is left out."""
    shown: dict[str, Any] = {}
    pool, stages = policies.decider.pool, policies.decider.choosing.stages
    if pool is not None and policies.balance is not None:
        shown["pool"] = {"waiting": len(pool), "bound": pool.bound, "expired": pool.expired}
        shown["balance"] = policies.balance.describe()
    if stages is not None:
        shown["stages"] = stage_figures.describe(stages)
    counted = {side: policy_figures.describe(p) for side, p in policies.policies.items()}
    shown["decisions"] = {side: figures for side, figures in counted.items() if figures}
    return shown
