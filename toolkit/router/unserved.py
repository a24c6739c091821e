"""What is answered where no endpoint is: unknown paths, wrong methods, a slash too many.

Errors have the shape that errors of such a path have (`toolkit.router.errors.family`). A path with
a slash too many is sent on, as SGLang does: 307, so that a POST stays one.
"""

from __future__ import annotations

from aiohttp import web

from toolkit.router.errors import ApiError, family


def answered(error: ApiError, path: str) -> web.Response:
    """An error as the answer to a request of this path."""
    return web.Response(
        status=error.status,
        body=error.body(family(path)),
        content_type="application/json",
        headers=error.headers(),
    )


async def unserved(request: web.Request) -> web.Response | None:
    """The answer to a request that no endpoint takes; None: one does."""
    if request.path.endswith("/") and request.path != "/":
        shorter = request.path.rstrip("/")
        allowed = await _allowed(request, shorter)
        if allowed is not None:
            return _sent_on(request, shorter, allowed)
    missed = request.match_info.http_exception
    if missed is None:
        return None
    if isinstance(missed, web.HTTPMethodNotAllowed):
        return _wrong_method(request, missed.allowed_methods)
    if request.method == "OPTIONS" and request.path == "*":
        return web.Response(status=204, headers={"Allow": "GET, HEAD, POST, DELETE, OPTIONS"})
    if isinstance(missed, web.HTTPNotFound):
        return answered(ApiError(404, f"There is no {_shown(request.path)} here."), request.path)
    return answered(ApiError(missed.status, missed.reason), request.path)


def _wrong_method(request: web.Request, methods: set[str]) -> web.Response:
    allow = ", ".join(sorted(methods | {"OPTIONS"}))
    if request.method == "OPTIONS":
        return web.Response(status=204, headers={"Allow": allow})
    error = ApiError(405, f"{_shown(request.path)} takes {allow}, not {request.method[:32]}.")
    response = answered(error, request.path)
    response.headers["Allow"] = allow
    return response


def _sent_on(request: web.Request, path: str, methods: set[str]) -> web.Response:
    if request.method == "OPTIONS":  # a browser follows no preflight that is sent on
        return web.Response(status=204, headers={"Allow": ", ".join(sorted(methods))})
    response = answered(ApiError(307, f"{path} has no slash at its end."), request.path)
    query = request.rel_url.raw_query_string
    response.headers["Location"] = path + (f"?{query}" if query else "")
    return response


async def _allowed(request: web.Request, path: str) -> set[str] | None:
    """The methods that a path takes; None: it is unknown, or has a name in it, which may end with
    a slash."""
    found: set[str] = set()
    for resource in request.app.router.resources():
        if resource.canonical == path:
            found |= {route.method for route in resource}
    return found | {"OPTIONS"} if found else None


def _shown(path: str) -> str:
    return path if len(path) <= 100 else path[:100] + "..."


def shape(app: web.Application) -> None:
    """Have what aiohttp itself refuses answered in that shape, too: an `Expect` that nobody knows,
    say."""

    async def say(request: web.Request, response: web.StreamResponse) -> None:
        if not isinstance(response, web.HTTPException) or response.status < 400:
            return
        error = ApiError(response.status, response.text or response.reason)
        response.body = error.body(family(request.path))
        response.content_type = "application/json"
        response.charset = None
        response.headers["Content-Length"] = str(len(error.body(family(request.path))))

    app.on_response_prepare.append(say)
