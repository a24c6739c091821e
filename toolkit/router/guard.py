"""Who may do what: client endpoints, the admin's, and the admin's own port on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from toolkit.contract.addresses import host_in, http_url, loopback_like
from toolkit.keys import KeysError
from toolkit.loopback import is_loopback
from toolkit.router import identity
from toolkit.router.errors import ApiError
from toolkit.router.keys import Caller, Keyring, keyring
from toolkit.router.own_answers import refusal
from toolkit.router.unserved import answered
from toolkit.settings.router.config import ConfigError

if TYPE_CHECKING:
    from toolkit.settings.router.config import RouterConfig

OPEN_PATHS = frozenset({"/health", "/readiness", "/metrics"})
"""Probes and scrapers have no key."""
ADMIN_PORT_PATHS = OPEN_PATHS | {
    "/workers",
    "/server_info",
    "/get_server_info",
    "/model_info",
    "/get_model_info",
    "/abort_request",
    "/admin/policy",
    "/admin/drain",
    "/admin/refit",
    "/admin/migrate",
    "/admin/returns",
    "/admin/upgrade",
}
"""What the admin's own port answers: no generation, which would need no client key there."""
REQUESTS = "/requests/"
"""What was known of a request, by its name; at the admin's port too."""
ANTHROPIC_KEY = "x-api-key"
CALLER = web.RequestKey("caller", Caller)
_NOBODY = Caller()


class Guard:
    """Looks at every request before anything else does.

    With an admin key the admin's endpoints want that, at either port. Without one they answer only
    at `admin_port`, on loopback, where a browser's page cannot ask for them: not across sites
    (`Origin`, `Sec-Fetch-Site`) and not under a name that was made to point here (`Host`).
    """

    def __init__(self, config: RouterConfig) -> None:
        self._port = config.admin_port
        self._host = config.host
        self._url = http_url(loopback_like(config.host), config.admin_port)
        self.keys: Keyring = keyring(config)

    @property
    def names(self) -> frozenset[str]:
        """What the client keys are called."""
        return self.keys.names

    @property
    def admin_url(self) -> str | None:
        """Where the admin's endpoints answer without a key; None: nowhere."""
        return self._url if self._port and not self.keys.admin else None

    def shows_addresses(self, request: web.Request) -> bool:
        """Whether GET /workers tells whoever asks where the workers are: the admin, and without an
        admin key everybody at a public port that only this machine can reach."""
        admin: bool = request[CALLER].admin
        return admin or (not self.keys.admin and is_loopback(self._host))

    def refuse(self, request: web.Request) -> web.Response | None:
        """The answer that ends this request; None lets it in, with its caller under CALLER."""
        caller = self.keys.caller(_given(request))
        if self.at_admin_port(request):
            wrong = strange(request)
            if wrong is not None:
                return _error(request, 403, f"The admin port takes no requests {wrong}.")
            if request.path not in ADMIN_PORT_PATHS and not request.path.startswith(REQUESTS):
                has = ", ".join((*sorted(ADMIN_PORT_PATHS), REQUESTS + "ID"))
                return _error(request, 404, f"The admin port has only: {has}")
            if not self.keys.admin:
                caller = Caller(admin=True)
            elif caller is None and request.path not in OPEN_PATHS:
                return unauthorized(request)
        elif caller is None and self.keys.clients and not _open(request):
            return unauthorized(request)
        request[CALLER] = caller or _NOBODY
        return None

    def refuse_admin(self, request: web.Request) -> web.Response | None:
        """The answer to whom is not the admin, from the admin's endpoints; None for the admin."""
        caller = request[CALLER]
        if caller.admin:
            return None
        if not self.keys.admin:
            where = f"at {self._url} only" if self._port else "nowhere"
            return _error(
                request,
                403,
                f"Without an admin key this answers {where}: set admin_key_env or admin_key_file"
                + ("." if self._port else ", or admin_port."),
            )
        if caller.name or _given(request):
            return _error(request, 403, "This needs the admin key.")
        return unauthorized(request)

    def refuse_order(self, request: web.Request) -> web.Response | None:
        """The answer to an order that is not the admin's, or that is meant for another run's
        router; None: it may be carried out."""
        refused = self.refuse_admin(request)
        if refused is not None:
            return refused
        wrong = identity.misdirected(request)
        return None if wrong is None else refusal(409, wrong)

    def at_admin_port(self, request: web.Request) -> bool:
        """Whether it came to the admin's own port."""
        if not self._port:
            return False
        name = request.get_extra_info("sockname")
        return isinstance(name, tuple) and name[1] == self._port


def guard_of(config: RouterConfig) -> Guard:
    """The guard of a configuration.

    Raises:
        ConfigError: a key cannot be read, or `classes` names one that is not there.
    """
    try:
        guard = Guard(config)
    except KeysError as error:
        raise ConfigError(str(error)) from error
    if config.classes is not None and (strangers := config.classes.named - guard.names):
        raise ConfigError(f"classes: no client key is called {', '.join(sorted(strangers))}")
    return guard


def strange(request: web.Request) -> str | None:
    """What shows that a web page makes somebody's browser send this; None: nothing does."""
    headers = request.headers
    if "Origin" in headers:
        return "from web pages (it has an Origin)"
    if headers.get("Sec-Fetch-Site", "none").lower() in ("cross-site", "same-site"):
        return "from other sites"
    if not is_loopback(host_in(headers.get("Host", ""))):
        return "under other names than localhost (Host)"
    return None


def _given(request: web.Request) -> str:
    """The key that came along: OpenAI's clients send `Authorization`, Anthropic's `x-api-key`."""
    return request.headers.get("Authorization", "") or request.headers.get(ANTHROPIC_KEY, "")


def _open(request: web.Request) -> bool:
    """Whether anybody may ask: OPTIONS tells what methods a path has, and a browser sends no key
    with it."""
    return request.path in OPEN_PATHS or request.method == "OPTIONS"


def unauthorized(request: web.Request) -> web.Response:
    """No key, or one that is nobody's."""
    response = _error(request, 401, "This needs a key, in header Authorization or x-api-key.")
    response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _error(request: web.Request, status: int, message: str) -> web.Response:
    return answered(ApiError(status, message), request.path)
