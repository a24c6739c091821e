"""What the router bounds, and who may ask it for what: read from the code."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

MIB = 2**20
KIB = 2**10
NO_BOUND = frozenset({"port", "admin_port", "seed", "tau"})
"""Numbers of a router's configuration that bound nothing."""


class Fixed(NamedTuple):
    """A bound that is in the code. `unit`: what one of it is, in what is shown."""

    module: str
    name: str
    meaning: str
    unit: float = 1
    shown: str = ""


FIXED = (
    Fixed("router.connections", "MAX_HEADERS", "headers of a request"),
    Fixed("router.budget", "SMALL", "the body of a request that is no generation", MIB, "MiB"),
    Fixed("router.budget", "LARGE_PER_S", "read a second of all large bodies", MIB, "MiB"),
    Fixed("router.relay", "EVENT_MAX", "one event of a worker's stream", MIB, "MiB"),
    Fixed("router.upstream", "ANSWER_MAX", "a worker's answer that does not stream", MIB, "MiB"),
    Fixed("router.upstream", "HEAD_MAX", "the head of a worker's answer", KIB, "KiB"),
    Fixed("router.events", "LINE_MAX", "one line of a worker's event stream", MIB, "MiB"),
    Fixed("contract.frames", "FRAME_MAX", "one frame of a worker's experts", MIB, "MiB"),
    Fixed("contract.numbers", "TOKENS", "tokens of a request that a worker may say"),
    Fixed("router.places", "MOST", "the text of a worker's failure that is passed on", KIB, "KiB"),
    Fixed("router.recording", "HELD_BYTES", "lines of `record` that wait", MIB, "MiB"),
    Fixed("router.splitting", "DEEPEST", "levels of lists and objects in a body"),
    Fixed("router.validate.check", "MAX_FIELDS", "fields of a body"),
    Fixed("router.validate.guided", "MAX_TEXT", "characters of a grammar, pattern or schema"),
    Fixed("router.validate.schema", "MAX_NODES", "parts of a schema"),
    Fixed("contract.stop_patterns", "MAX_STOP", "characters of all stop strings of a request"),
    Fixed("contract.stop_patterns", "MAX_ALL", "bytes of all `stop_regex` of a request"),
    Fixed("contract.stop_patterns", "MAX_SIZE", "characters of these, repetitions written out"),
    Fixed("contract.stop_patterns", "MAX_TOKENS", "tokens that one without longest match sees"),
    Fixed("contract.stop_patterns", "MAX_STEPS", "of a search after one token: size times reach"),
    Fixed("limited_logs", "BURST", "log lines of one source at once; then one a second"),
    Fixed("bounded_files", "TEXT_MOST", "a file of JSON or of lines", MIB, "MiB"),
    Fixed("bounded_files", "YAML_MOST", "a deployment file", MIB, "MiB"),
    Fixed("bounded_files", "DEPTH", "levels of lists and mappings in such a file"),
    Fixed("bounded_files", "NODES", "values of a deployment file, aliases counted as they stand"),
)


def rows() -> list[tuple[str, str, str, str]]:
    """(bound, default, key of the deployment file, meaning); the key is empty where there is
    none."""
    from pydantic import BaseModel

    from toolkit.settings.processes import Restart
    from toolkit.settings.router.config import RouterConfig
    from toolkit.settings.router.section import Router

    found = []
    for name, field in RouterConfig.model_fields.items():
        if field.annotation not in (int, float) or name in NO_BOUND:
            continue
        sections: dict[str, type[BaseModel]] = {"restart": Restart, "router": Router}
        key = next((f"`{s}.{name}`" for s, of in sections.items() if name in of.model_fields), "")
        found.append((f"`{name}`", f"{field.default:g}", key, field.description or ""))
    for each in FIXED:
        value = getattr(import_module(f"toolkit.{each.module}"), each.name) / each.unit
        shown = f"{value:,.0f} {each.shown}".strip()
        found.append((f"`{each.module}`: `{each.name}`", shown, "", each.meaning))
    return found


class Endpoint(NamedTuple):
    """`key`: what the public port wants for it: `none`, `client`, `admin`."""

    method: str
    path: str
    key: str
    at_admin_port: bool


def endpoints() -> list[Endpoint]:
    """Every route of the router."""
    from toolkit.router.app import RouterApp
    from toolkit.router.guard import ADMIN_PORT_PATHS, OPEN_PATHS
    from toolkit.settings.router.config import RouterConfig
    from toolkit.settings.router.worker import WorkerConfig

    worker = WorkerConfig(name="w", role="plain", url="http://127.0.0.1:1")
    app = RouterApp(RouterConfig(workers=(worker,))).app()
    found = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method not in ("HEAD", "OPTIONS", "*")
    }
    return [
        Endpoint(method, path, _key(path, OPEN_PATHS), path in ADMIN_PORT_PATHS)
        for method, path in sorted(found, key=lambda each: (each[1], each[0]))
    ]


def _key(path: str, open_paths: frozenset[str]) -> str:
    if path in open_paths:
        return "none"
    return "admin" if path.startswith("/admin/") else "client"
