"""Is it up? HTTP probes and a real generation through the whole path. Standard library only."""

import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

from toolkit.bounded_files import parse_json
from toolkit.contract.headers import RUN
from toolkit.keys import KeysError
from toolkit.launch import keys
from toolkit.launch.plan import Plan

PROMPT = "The capital of France is"
EMBEDDINGS = "/v1/embeddings"
TOKENS = 4


class NotReady(Exception):
    """The path does not work yet; the message says what answered."""


# Proxies from the environment must not catch requests to our own workers.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ProbeAnswer(NamedTuple):
    """An answer; `status` is 0 when there was none, and `body` then says why. `run`: of which run
    it says that it is. `strange`: something answered that is not HTTP."""

    status: int
    body: bytes
    run: str | None
    strange: bool = False


def ask(url: str, timeout: float = 5.0, key: str | None = None) -> ProbeAnswer:
    """GET, and who answers."""
    return _ask(urllib.request.Request(url, headers=_headers(key)), timeout)


def get(url: str, timeout: float = 5.0, key: str | None = None) -> tuple[int, bytes]:
    """Status and body of a GET; status 0 when nothing answered."""
    return ask(url, timeout, key)[:2]


def post(
    url: str,
    body: Any,
    timeout: float,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Status and body of a JSON POST; status 0 when nothing answered."""
    data = json.dumps(body).encode()
    sent = _headers(key) | {"Content-Type": "application/json"} | dict(headers or {})
    return _ask(urllib.request.Request(url, data=data, headers=sent), timeout)[:2]


def api_key(plan: Plan) -> str | None:
    """A client key of the router, out of what the deployment names; None: there is none."""
    try:
        return keys.client_key(keys.names_of(plan.router))
    except KeysError:
        return None


def generate(plan: Plan, timeout: float) -> list[float]:
    """Generate through the whole path, once per worker of the larger side (at most 8 times), and
    once at least through each router of this host. Workers that embed are asked for an embedding.

    Returns the seconds each took. Raises NotReady with what was answered instead.
    """
    sides = [
        sum(w.role == r and w.url is not None for w in plan.workers)
        for r in ("prefill", "decode", "plain")
    ]
    times = []
    routers = plan.own_routers or plan.routers
    for number in range(max(min(max(sides), 8), len(routers))):
        begin = time.monotonic()
        if routers:
            path, body = _asked(plan)
            url = routers[number % len(routers)].url
            status, answer = post(f"{url}{path}", body, timeout, api_key(plan))
        else:
            status, answer = _without_router(plan, timeout)
        _check(_asked(plan)[0], status, answer)
        times.append(time.monotonic() - begin)
    return times


def _asked(plan: Plan) -> tuple[str, dict[str, Any]]:
    """Which endpoint shows that its workers can do what they are for, and with what."""
    if any("--is-embedding" in worker.argv for worker in plan.workers):
        return EMBEDDINGS, {"model": "any", "input": PROMPT}
    return "/generate", _body()


def _body() -> dict[str, Any]:
    sampling = {"max_new_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True}
    return {"text": PROMPT, "sampling_params": sampling}


def _without_router(plan: Plan, timeout: float) -> tuple[int, bytes]:
    """Do a router's job once: the same body, with one room, to a prefill and a decode worker."""
    heads = [w for w in plan.workers if w.url]
    if plan.mode == "plain":
        path, asked = _asked(plan)
        return post(f"{heads[0].url}{path}", asked, timeout)
    prefill = next(w for w in heads if w.role == "prefill")
    decode = random.choice([w for w in heads if w.role == "decode"])
    body = _body() | {
        "bootstrap_host": prefill.address,
        "bootstrap_port": prefill.bootstrap_port,
        "bootstrap_room": random.getrandbits(63),
    }
    side = threading.Thread(
        target=post, args=(f"{prefill.url}/generate", body, timeout), daemon=True
    )
    side.start()
    return post(f"{decode.url}/generate", body, timeout)


def _check(path: str, status: int, answer: bytes) -> None:
    shown = answer[:300].decode("utf-8", "replace").strip()
    if status != 200:
        raise NotReady(f"{path} answered {status or 'nothing'}: {shown}")
    try:
        found = parse_json(answer)
        if path == EMBEDDINGS:
            tokens = len(found["data"][0]["embedding"])
        else:
            tokens = found["meta_info"]["completion_tokens"]
    except (ValueError, LookupError, TypeError) as error:
        raise NotReady(f"{path} answered no usable JSON: {shown}") from error
    if tokens < 1:
        raise NotReady(f"{path} made nothing: {shown}")


def _headers(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _ask(request: urllib.request.Request, timeout: float) -> ProbeAnswer:
    """ValueError: the URL is none, so nobody will ever answer there."""
    for name, value in keys.ours(request.full_url).items():
        request.add_header(name, value)
    try:
        with _opener.open(request, timeout=timeout) as response:
            return ProbeAnswer(response.status, response.read(), response.headers.get(RUN))
    except urllib.error.HTTPError as error:
        with error:
            return ProbeAnswer(error.code, error.read(), error.headers.get(RUN))
    except (OSError, ValueError) as error:
        return ProbeAnswer(0, str(error).encode(), None)
    except Exception as error:  # http.client raises several kinds for a broken answer
        return ProbeAnswer(0, repr(error).encode(), None, strange=True)
