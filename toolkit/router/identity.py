"""Of which run this router is, and whether a worker is of it too.

Ports change hands: where this run's worker died, another run's may listen a moment later. A worker
says in its `hello` of which run it is. It is compared where this router's own launcher started the
worker (`same_run` of its entry); those of another host have a launcher, and so a run, of their own,
and are known by the key that they share with this router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.contract import headers, run_id

if TYPE_CHECKING:
    from aiohttp import web

    from toolkit.settings.router.worker import WorkerConfig

MARKED = frozenset({"/health", "/readiness", "/workers"})


def mark(app: web.Application) -> None:
    """Have answers to the launcher say whose router it is, if a launcher started it."""
    own = run_id.own()
    if not own:
        return

    async def say(request: web.Request, response: web.StreamResponse) -> None:
        if request.path in MARKED or request.path.startswith("/admin/"):
            response.headers[headers.RUN] = own

    app.on_response_prepare.append(say)


def misdirected(request: web.Request) -> str | None:
    """Why a request that names a run is not for this router; None when it may be."""
    wanted, own = request.headers.get(headers.RUN), run_id.own()
    if not wanted or wanted == own:
        return None
    return f"this is the router of run {own or '(none)'}, not of {wanted}"


def other_run(worker: WorkerConfig, theirs: object) -> str | None:
    """Why a worker that says to be of run `theirs` (None: it has no event stream, and says nothing)
    must not serve here; None: it may."""
    own = run_id.own()
    if not own or not worker.same_run:
        return None
    if theirs is None:
        return "it is not this run's: it has no event stream"
    return None if theirs == own else f"it is of run {theirs or '(none)'}, this is {own}"
