"""Everything that is not generation: health, workers, metrics, models, abort, administration."""

from __future__ import annotations

from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from toolkit.decide.messages import Expected
from toolkit.policies import check_policy
from toolkit.router import (
    drains,
    identity,
    kept_answers,
    migrate,
    policy_figures,
    return_reports,
    stage_figures,
)
from toolkit.router.about_workers import for_client
from toolkit.router.errors import ApiError
from toolkit.router.events import answer
from toolkit.router.guard import CALLER
from toolkit.router.places import without_places_in
from toolkit.router.unserved import answered
from toolkit.settings.router.choosing import MOVES_BY
from toolkit.settings.router.config import why_not

if TYPE_CHECKING:
    from toolkit.router.app import RouterApp
    from toolkit.router.dispatch import Dispatcher

ABORTED = "aborted by /abort_request"
SWITCHES = ("prefill", "decode", "dispatch", "first_token", "moves")
"""What /admin/policy can change."""
METRICS_SHARE = 0.05
"""Of the event loop's time: who asks for /metrics more often gets those of a moment ago. It is open
to everybody, and takes a ms and more."""
PROXIED = ("/v1/models", "/get_model_info", "/model_info", "/get_server_info", "/server_info")


def add_routes(app: web.Application, router: RouterApp) -> None:
    view = Views(router)
    app.router.add_get("/health", view.health)
    app.router.add_get("/readiness", view.readiness)
    app.router.add_get("/workers", view.workers)
    app.router.add_get("/metrics", view.metrics)
    app.router.add_get("/requests/{id}", view.request)
    app.router.add_post("/abort_request", view.abort)
    app.router.add_post("/admin/policy", view.policy)
    app.router.add_post("/admin/drain", view.drain)
    app.router.add_post("/admin/refit", view.refit)
    app.router.add_post("/admin/migrate", view.migrate)
    app.router.add_post("/admin/returns", view.returns)
    for path in PROXIED:
        app.router.add_get(path, view.proxy)
    app.router.add_get("/v1/models/{model:.*}", view.proxy)
    kept_answers.add_routes(app)


class Views:
    def __init__(self, router: RouterApp) -> None:
        self._r = router
        self._metrics = b""
        self._metrics_until = 0.0

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readiness(self, _: web.Request) -> web.Response:
        if self._r.known_workers.ready() and not self._r.admission.draining:
            return web.Response(text="ready")
        down = [
            f"{w.name} ({without_places_in(w.why_down)})" if w.why_down else w.name
            for w in self._r.known_workers.workers
            if not w.healthy
        ]
        why = "draining" if self._r.admission.draining else f"waiting for {', '.join(down)}"
        return web.Response(status=503, text=why, headers={"Retry-After": "2"})

    async def workers(self, request: web.Request) -> web.Response:
        """With `?lengths=1` also (prompt, KV tokens, rank) of every request that decodes. Addresses
        are for those whom the guard lets see them."""
        router = self._r
        now, addresses = monotonic(), router.guard.shows_addresses(request)
        rows = [
            r.describe(now)
            | {"back_in_s": router.known_workers.back_in_s(w, now)}
            | stage_figures.of_rank(router.dispatcher, r)
            for w in router.known_workers.workers
            for r in w.ranks
        ]
        for row in rows if not addresses else ():
            del row["url"]
            if "why" in row:
                row["why"] = without_places_in(row["why"])
        return _json(
            {
                "workers": rows,
                "dispatch": router.dispatcher.dispatch,
                "first_token": router.dispatcher.serving.first_token,
                "policies": {s: p.name for s, p in router.dispatcher.policies.items()},
                "running": router.admission.running,
                "queued": router.admission.queued,
                "parked": router.known_workers.decider.attempts.parked,
                "held_bytes": router.budget.held,
                **_figures(router.dispatcher),
                **({} if router.locality is None else {"eldr": router.locality.describe()}),
                "poison": dict(router.known_workers.decider.attempts.retries.poisoned),
                "resumed": router.metrics.resumed,
                "retried": router.metrics.retried,
                "moves": router.dispatcher.moves.describe(),
                **(
                    {} if router.rebalancer is None else {"rebalance": router.rebalancer.describe()}
                ),
                **({"lengths": _lengths(router)} if request.query.get("lengths") == "1" else {}),
                "draining": router.admission.draining,
                "admin": router.guard.admin_url if addresses else None,
                "timing": router.metrics.percentiles(),
            }
        )

    async def metrics(self, _: web.Request) -> web.Response:
        now = monotonic()
        if now >= self._metrics_until:
            begin = thread_time()
            self._metrics = self._metrics_now()
            self._metrics_until = now + (thread_time() - begin) / METRICS_SHARE
        return web.Response(
            body=self._metrics, headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    def _metrics_now(self) -> bytes:
        metrics, router = self._r.metrics, self._r
        metrics.running.set(router.admission.running)
        metrics.queued.set(router.admission.queued)
        metrics.parked.set(router.known_workers.decider.attempts.parked)
        for worker in router.known_workers.workers:
            metrics.healthy.labels(worker.name).set(worker.healthy)
            for rank in worker.ranks:
                metrics.inflight.labels(worker.name, str(rank.dp_rank)).set(rank.inflight)
                metrics.held.labels(worker.name, str(rank.dp_rank)).set(rank.held)
        return metrics.text()

    async def proxy(self, request: web.Request) -> web.Response:
        """From the first healthy worker that answers; the admin sees all of it."""
        for worker in self._r.known_workers.workers:
            if not worker.healthy:
                continue
            status, body, headers = await answer(worker, request.raw_path)
            if status <= 0:
                continue
            shown = body if request[CALLER].admin else for_client(request.path, status, body)
            if shown is None:
                return _error(502, "The worker's answer is not a JSON object.")
            return web.Response(
                status=status, body=shown, content_type="application/json", headers=headers
            )
        return answered(ApiError(503, "No healthy worker.", retry_after=2), request.path)

    async def request(self, request: web.Request) -> web.Response:
        """What is known of a request, by its `x-request-id` or the id of its answer: of all to the
        admin, to a client with a key of its own."""
        caller = request[CALLER]
        if not caller.name:
            refused = self._r.guard.refuse_admin(request)
            if refused is not None:
                return refused
        name = request.match_info["id"]
        found = self._r.known_requests.find(name, None if caller.admin else caller.name)
        if not found:
            return _error(404, "No request of this id is running, nor among the last that ended.")
        return _json({"requests": [known.describe(caller.admin) for known in found]})

    async def abort(self, request: web.Request) -> web.Response:
        """SGLang's /abort_request: by the client's own rid, of its own requests; `abort_all`, and
        other clients' requests, are the admin's."""
        body = await _body(request)
        if not isinstance(body, dict):
            return _error(400, 'the body must be {"rid": "..."} or {"abort_all": true}')
        everything = body.get("abort_all") is True
        refused = self._r.guard.refuse_admin(request) if everything else None
        if refused is not None:
            return refused
        caller, rid = request[CALLER], body.get("rid")
        for (owner, name), tasks in list(self._r.jobs.items()):
            if (caller.admin or owner == caller.name) and (everything or name == rid):
                for task in list(tasks):
                    task.cancel(ABORTED)
        return web.Response(status=200)

    async def policy(self, request: web.Request) -> web.Response:
        """Switch policies, the dispatch or who tells first tokens at run time; all or nothing."""
        refused = self._r.guard.refuse_admin(request)
        if refused is not None:
            return refused
        body = await _body(request)
        if not isinstance(body, dict) or not set(body) <= set(SWITCHES):
            return _error(400, f"the body must be an object of some of {', '.join(SWITCHES)}")
        dispatcher = self._r.dispatcher
        first_token = body.get("first_token", dispatcher.serving.first_token)
        if first_token not in ("prefill", "decode"):
            return _error(400, "first_token must be 'prefill' or 'decode'")
        dispatch = body.get("dispatch", dispatcher.dispatch)
        if dispatch not in ("late", "concurrent"):
            return _error(400, "dispatch must be 'late' or 'concurrent'")
        moves = body.get("moves", dispatcher.moves.kind)
        if moves not in MOVES_BY:
            return _error(400, f"moves must be one of {', '.join(MOVES_BY)}")
        try:
            for side in ("prefill", "decode"):
                check_policy(str(body.get(side, dispatcher.policies[side].name)), side)
        except ValueError as error:
            return _error(400, str(error))
        decode = str(body.get("decode", dispatcher.policies["decode"].name))
        wrong = why_not(decode, self._r.config, dispatch)
        if wrong is not None:
            return _error(400, wrong)
        for side in ("prefill", "decode"):
            if side in body:
                dispatcher.set_policy(side, body[side])
        dispatcher.switch(dispatch, first_token)
        dispatcher.moves.use(moves)
        # They then describe one setting.
        self._r.metrics.clear_rings()
        if dispatcher.balance is not None:
            dispatcher.balance.clear()
        names = {s: p.name for s, p in dispatcher.policies.items()}
        return _json({**names, "dispatch": dispatch, "first_token": first_token, "moves": moves})

    async def refit(self, request: web.Request) -> web.Response:
        """Refit ELDR's centroids on recent requests now; {"force": true} adopts in any case."""
        refused = self._r.guard.refuse_admin(request)
        if refused is not None:
            return refused
        raw = await request.read()
        body = await _body(request) if raw else {}
        if not isinstance(body, dict) or not set(body) <= {"force"}:
            return _error(400, 'the body must be empty or {"force": true}')
        force = body.get("force", False)
        if not isinstance(force, bool):
            return _error(400, "force must be true or false")
        locality = self._r.locality
        if locality is None:
            return _error(
                409,
                "there is no profile to refit in: give the router's configuration a `profile` and "
                "decode_policy eldr",
            )
        from toolkit.router.eldr.drift_refits import TooFew
        from toolkit.router.eldr.refits import RefitError

        try:
            return _json(await locality.refit_now(force))
        except TooFew as error:
            return _error(409, str(error))
        except RefitError as error:
            return _error(500, f"the refit failed: {error}")

    async def migrate(self, request: web.Request) -> web.Response:
        """Move requests to other workers (`toolkit.router.migrate`)."""
        refused = self._r.guard.refuse_admin(request)
        if refused is not None:
            return refused
        wrong = identity.misdirected(request)
        if wrong is not None:
            return _error(409, wrong)
        try:
            order = migrate.read(await _body(request), self._r.known_workers)
            return _json(await migrate.migrate(self._r.dispatcher.moves, order))
        except ApiError as error:
            return _error(error.status, error.message)

    async def returns(self, request: web.Request) -> web.Response:
        """The launcher tells how long starts take, and when workers are back."""
        refused = self._r.guard.refuse_admin(request)
        if refused is not None:
            return refused
        wrong = identity.misdirected(request)
        if wrong is not None:
            return _error(409, wrong)
        told = return_reports.read(await _body(request))
        if isinstance(told, str):
            return _error(400, told)
        known_workers = self._r.known_workers
        names = {worker.name for worker in known_workers.workers}
        for name, each in told.items():
            if name in names:
                known_workers.channel.send(Expected(name, each.usual_s, each.back_in_s))
        return _json({"taken": sorted(names & told.keys())})

    async def drain(self, request: web.Request) -> web.Response:
        """Refuse new requests from now on, those that run go on; {"on": false}: take them again.
        With `worker`: empty that one (`toolkit.router.drains`)."""
        refused = self._r.guard.refuse_admin(request)
        if refused is not None:
            return refused
        raw = await request.read()
        body = await _body(request) if raw else {}
        wrong = identity.misdirected(request)
        if wrong is not None:
            return _error(409, wrong)
        if isinstance(body, dict) and "worker" in body:
            return await self._drain_worker(body)
        if not isinstance(body, dict) or not set(body) <= {"on"}:
            return _error(
                400, 'the body must be empty, {"on": false}, or about one worker: ' + drains.SHAPE
            )
        on = body.get("on", True)
        if not isinstance(on, bool):
            return _error(400, "on must be true or false")
        if not on and self._r.ending:
            return _error(409, "the router is ending")
        admission = self._r.admission
        admission.draining = on
        return _json({"draining": on, "running": admission.running, "queued": admission.queued})

    async def _drain_worker(self, body: Any) -> web.Response:
        router = self._r
        try:
            return _json(await router.drains.run(body, router.config.drain_timeout_s))
        except ApiError as error:
            return _error(error.status, error.message)


def _lengths(router: RouterApp) -> list[tuple[int, int, str]]:
    return [
        (live.length - live.generated, live.length, live.rank.name)
        for live in router.dispatcher.moves.all()
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


async def _body(request: web.Request) -> Any:
    try:
        return orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        return None


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return answered(ApiError(status, message), "")
