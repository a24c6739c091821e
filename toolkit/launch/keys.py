"""The keys of a run: the workers' own, made for it, and which of a deployment's keys is for whom.

The worker key is nowhere on disk and in no command line: it is in the environment of the run's
workers and of its router, and in the launcher. Another process of the same user (`toolkit profile`,
`toolkit bench`) reads it out of a worker's environment, as that user may.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.contract.addresses import origin_of, place_of
from toolkit.contract.variables import INSECURE_VARIABLE, WORKER_KEY_VARIABLE
from toolkit.keys import KeysError, client_keys, from_environment, one_key
from toolkit.launch.errors import LaunchError, Problem
from toolkit.loopback import is_loopback, is_own

if TYPE_CHECKING:
    from toolkit.launch.plan import Plan, RouterPlan

_ours: dict[str, str] = {}
"""Origin (http://HOST:PORT) of a worker of this process's own runs -> its key."""


def worker_key(plan: Plan) -> str:
    """The key of a new run: the one that the deployment names, else a random one; "" where the
    workers ask for none.

    Raises LaunchError: the named one is not there.
    """
    if not plan.keyed:
        return ""
    try:
        named = one_key(plan.worker_key_env, plan.worker_key_file)
    except KeysError as error:
        raise LaunchError([Problem("worker_key", str(error))]) from error
    return named or secrets.token_urlsafe(32)


def armed(plan: Plan, key: str) -> Plan:
    """The plan with the key in the environments of its workers and its routers: to run, never to
    show or to write."""
    if not key:
        return plan
    own = {WORKER_KEY_VARIABLE: key}
    workers = tuple(replace(w, env={**w.env, **own}) for w in plan.workers)
    routers = tuple(replace(r, env={**r.env, **own}) for r in plan.routers)
    return replace(plan, workers=workers, routers=routers)


def not_for_workers(plan: Plan) -> tuple[str, ...]:
    """Variables of the launcher's environment that no worker inherits: clients', admin's keys."""
    config = names_of(plan.router)
    names = (config.get("api_key_env"), config.get("admin_key_env"), plan.worker_key_env)
    return (WORKER_KEY_VARIABLE, *(name for name in names if name))


def not_for_the_router(plan: Plan) -> tuple[str, ...]:
    """Variables of the launcher's environment that the router does not inherit."""
    return (WORKER_KEY_VARIABLE, *([plan.worker_key_env] if plan.worker_key_env else []))


def hold(plan: Plan, key: str) -> None:
    """From now on `key_at` knows the key of these workers, in this process."""
    for worker in plan.workers if key else ():
        _ours[origin_of(worker.health_url)] = key


def drop(plan: Plan) -> None:
    """Forget what `hold` was told."""
    for worker in plan.workers:
        _ours.pop(origin_of(worker.health_url), None)


def ours(url: str) -> dict[str, str]:
    """The header for a worker of this process's own runs; empty for every other URL."""
    key = _ours.get(origin_of(url))
    return {"Authorization": f"Bearer {key}"} if key else {}


def key_at(url: str) -> str | None:
    """The key of the worker that answers at this URL, if it is one of a run that this process, or
    another one of this user on this machine, supervises; None: none is known."""
    origin = origin_of(url)
    own = _ours.get(origin)
    if own is not None:
        return own
    for pid, start in _processes_at(origin):
        key = _key_of_process(pid, start)
        if key is not None:
            return key
    return None


def headers_at(url: str) -> dict[str, str]:
    """The header for what is known to be a worker. Where its run cannot be seen (on another host)
    the key is that in our own environment; empty: there is none.

    Raises KeysError: that key would leave this machine by plain HTTP.
    """
    key = key_at(url)
    if key is None and (key := os.environ.get(WORKER_KEY_VARIABLE)):
        _check_stays(url)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _check_stays(url: str) -> None:
    """Raise KeysError where a key would go to another host by plain HTTP unwanted."""
    host = place_of(url).host
    if is_loopback(host) or is_own(host) or os.environ.get(INSECURE_VARIABLE) == "1":
        return
    raise KeysError(
        f"the key in {WORKER_KEY_VARIABLE} would go to {host} by plain HTTP: run this there, or "
        f"set {INSECURE_VARIABLE}=1 where nobody else is on that network"
    )


def client_key(named: Mapping[str, Any]) -> str | None:
    """A client key of the router, out of what `api_key_env` or `api_keys_file` of a plan's router
    configuration or of a run's state names; None: none is asked for. KeysError: it is not there."""
    if named.get("api_key_env"):
        return from_environment(str(named["api_key_env"]))
    if named.get("api_keys_file"):
        return client_keys(str(named["api_keys_file"]))[0][1]
    return None


def admin_key(named: Mapping[str, Any]) -> str | None:
    """The admin key, in the same way, out of `admin_key_env` or `admin_key_file`."""
    return one_key(named.get("admin_key_env"), named.get("admin_key_file"))


def named_keys(router: RouterPlan | None) -> dict[str, Any]:
    """Where a router's keys are and who may give it orders, for state.json; no key."""
    config = names_of(router)
    names = ("api_key_env", "api_keys_file", "admin_key_env", "admin_key_file")
    found = {name: config.get(name) for name in names}
    return found | {"admin_url": router.admin_url if router else None}


def names_of(router: RouterPlan | None) -> Mapping[str, Any]:
    """Which variables and files hold a router's keys, ours or SGLang's."""
    if router is None:
        return {}
    return {"api_key_env": router.key_env} if router.config is None else router.config


def _processes_at(origin: str) -> Iterator[tuple[int, int]]:
    """(pid, start time) of the process that serves this origin, by the states of live runs."""
    from toolkit.launch import trees
    from toolkit.launch.errors import LaunchError
    from toolkit.launch.state import STATE, read_state, runs_root

    for path in runs_root().glob(f"*/{STATE}"):
        try:
            state = read_state(path.parent)
            if not trees.is_running(state["pid"], state["start_ticks"]):
                continue
            rows: Iterable[Mapping[str, Any]] = state["workers"]
        except (LaunchError, KeyError):
            continue
        for row in rows:
            if row.get("url") and origin_of(row["url"]) == origin and row.get("pid"):
                yield row["pid"], row["start_ticks"]


def _key_of_process(pid: int, start: int) -> str | None:
    """The key in a process's environment; None when it is gone or another user's."""
    from toolkit.launch import trees

    if not trees.is_running(pid, start):
        return None
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{WORKER_KEY_VARIABLE}=".encode()
    found = next((line for line in environ.split(b"\0") if line.startswith(prefix)), b"")
    return found.removeprefix(prefix).decode() or None
