"""What the router tells: its health, its workers, its metrics, its workers' models."""

from __future__ import annotations

from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any

from aiohttp import web

from toolkit.router import policy_figures, stage_figures
from toolkit.router.about_workers import for_client
from toolkit.router.errors import ApiError
from toolkit.router.events import answer
from toolkit.router.guard import CALLER
from toolkit.router.own_answers import as_json, refusal
from toolkit.router.places import without_places_in
from toolkit.router.unserved import answered

if TYPE_CHECKING:
    from toolkit.router.admission import Admission
    from toolkit.router.budget import Budget
    from toolkit.router.dispatch import Dispatcher
    from toolkit.router.guard import Guard
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.metrics import Metrics
    from toolkit.router.moves import Moves

METRICS_SHARE = 0.05
"""Of the event loop's time: who asks for /metrics more often gets those of a moment ago. It is open
to everybody, and takes a ms and more."""
PROXIED = ("/v1/models", "/get_model_info", "/model_info", "/get_server_info", "/server_info")


class RouterHealth:
    """Whether the router serves, and what its workers say of themselves."""

    def __init__(self, known_workers: KnownWorkers, admission: Admission) -> None:
        self._known_workers = known_workers
        self._admission = admission

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/health", self.health)
        app.router.add_get("/readiness", self.readiness)
        for path in PROXIED:
            app.router.add_get(path, self.proxy)
        app.router.add_get("/v1/models/{model:.*}", self.proxy)

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readiness(self, _: web.Request) -> web.Response:
        if self._known_workers.ready() and not self._admission.draining:
            return web.Response(text="ready")
        down = [
            f"{w.name} ({without_places_in(w.why_down)})" if w.why_down else w.name
            for w in self._known_workers.workers
            if not w.healthy
        ]
        why = "draining" if self._admission.draining else f"waiting for {', '.join(down)}"
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

    def __init__(
        self,
        guard: Guard,
        dispatcher: Dispatcher,
        admission: Admission,
        budget: Budget,
    ) -> None:
        self._guard = guard
        self._dispatcher = dispatcher
        self._admission = admission
        self._budget = budget

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/workers", self.workers)

    async def workers(self, request: web.Request) -> web.Response:
        """With `?lengths=1` also (prompt, KV tokens, rank) of every request that decodes. Addresses
        are for those whom the guard lets see them."""
        dispatcher, admission, guard = self._dispatcher, self._admission, self._guard
        known_workers, metrics = dispatcher.known_workers, dispatcher.metrics
        locality, decided = dispatcher.locality, dispatcher.decider.moves
        lengths = request.query.get("lengths") == "1"
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
                "dispatch": dispatcher.dispatch,
                "first_token": dispatcher.serving.first_token,
                "early_choice": dispatcher.serving.early_choice,
                "policies": {s: p.name for s, p in dispatcher.policies.items()},
                "running": admission.running,
                "queued": admission.queued,
                "parked": known_workers.decider.attempts.parked,
                "held_bytes": self._budget.held,
                **_figures(dispatcher),
                **({} if locality is None else {"eldr": locality.describe()}),
                "poison": dict(known_workers.decider.attempts.retries.poisoned),
                "resumed": metrics.resumed,
                "retried": metrics.retried,
                "moves": dispatcher.moves.describe(),
                **stage_figures.of_passes(decided),
                **({"lengths": _lengths(dispatcher.moves)} if lengths else {}),
                "draining": admission.draining,
                "admin": guard.admin_url if addresses else None,
                "timing": metrics.percentiles(),
            }
        )


class MetricsPage:
    """The page for Prometheus."""

    def __init__(self, metrics: Metrics, known_workers: KnownWorkers, admission: Admission) -> None:
        self._metrics = metrics
        self._known_workers = known_workers
        self._admission = admission
        self._page = b""
        self._until = 0.0

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/metrics", self.metrics)

    async def metrics(self, _: web.Request) -> web.Response:
        now = monotonic()
        if now >= self._until:
            begin = thread_time()
            self._page = self._now()
            self._until = now + (thread_time() - begin) / METRICS_SHARE
        return web.Response(body=self._page, headers={"Content-Type": "text/plain; version=0.0.4"})

    def _now(self) -> bytes:
        metrics = self._metrics
        metrics.running.set(self._admission.running)
        metrics.queued.set(self._admission.queued)
        metrics.parked.set(self._known_workers.decider.attempts.parked)
        for worker in self._known_workers.workers:
            metrics.healthy.labels(worker.name).set(worker.healthy)
            for rank in worker.ranks:
                metrics.inflight.labels(worker.name, str(rank.dp_rank)).set(rank.inflight)
                metrics.held.labels(worker.name, str(rank.dp_rank)).set(rank.held)
        return metrics.text()


def _lengths(moves: Moves) -> list[tuple[int, int, str]]:
    return [
        (live.length - live.generated, live.length, live.rank.name)
        for live in moves.all()
        if live.rank is not None
    ]


def _figures(dispatcher: Dispatcher) -> dict[str, Any]:
    """Pool, balance, and what policies count; what a deployment does not have is left out."""
    shown: dict[str, Any] = {}
    pool, stages = dispatcher.decider.pool, dispatcher.decider.choosing.stages
    if pool is not None and dispatcher.balance is not None:
        shown["pool"] = {"waiting": len(pool), "bound": pool.bound, "expired": pool.expired}
        shown["balance"] = dispatcher.balance.describe()
    if stages is not None:
        shown["stages"] = stage_figures.describe(stages)
    counted = {side: policy_figures.describe(p) for side, p in dispatcher.policies.items()}
    shown["decisions"] = {side: figures for side, figures in counted.items() if figures}
    return shown
