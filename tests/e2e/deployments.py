"""Deployments of real CPU workers: started, recorded with their seconds, and left well."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tests import record
from tests.e2e import calls, lending
from toolkit.launch import readiness
from toolkit.launch.resolve import resolve
from toolkit.launch.running import Running, running
from toolkit.resources import recipes_dir
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load_deployment
from toolkit.settings.yaml_lines import read_document

STARTS = (
    "patches.worker",
    "patches.registry",
    "patches.preloaded",
    "tests.e2e.template",
    "patches.check_args",
    "toolkit.router",
    "toolkit.router.rehearsal",
)


def shipped(recipe: str, /, **changes: Any) -> dict[str, Any]:
    """What the shipped deployment file of that name says, with changes: a mapping changes the keys
    that it has."""
    document, _ = read_document(recipes_dir() / f"{recipe}.yaml")
    return _changed(document, changes)


def _changed(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return old | {
        key: _changed(old.get(key) or {}, value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }


SETTLES_S = 30.0
"""A test's last requests may still be on the books, and the router may have to hear of a worker
that is back."""


@contextmanager
def deployed(
    source: Deployment | Path | dict[str, Any], folder: Path, own_imports: bool = False
) -> Iterator[Running]:
    """Start a deployment: a file, the contents of one, or what was read from one.

    `own_imports`: its launcher imports SGLang itself, as a user's does (`lending`).
    """
    if isinstance(source, dict):
        file = folder / "deployment.yaml"
        file.write_text(json.dumps(source))  # JSON is YAML
        source = file
    plan = resolve(load_deployment(source) if isinstance(source, Path) else source)
    begin = time.monotonic()
    with ExitStack() as ends:
        with nullcontext() if own_imports else lending.lent():
            up = ends.enter_context(running(plan, folder))
        workers = ", ".join(worker.name for worker in up.workers)
        record.start(f"{plan.name}: {workers}", time.monotonic() - begin)
        yield up


class Shared:
    """A deployment that many tests use: each finds it whole, under its own policies."""

    def __init__(self, up: Running) -> None:
        self.up = up
        self._policies = self._set(self._state())

    def restore(self) -> str:
        """Put the policies back and wait until it is whole; what is wrong with it, or ""."""
        if self._set(self._state()) != self._policies:
            calls.run(calls.switch(self.up.router_url, **self._policies))
        deadline = time.monotonic() + SETTLES_S
        while wrong := self._wrong():
            if time.monotonic() > deadline:
                return wrong
            time.sleep(0.2)
        return ""

    def _state(self) -> dict[str, Any]:
        status, body = readiness.get(self.up.router_url + "/workers")
        assert status == 200, f"the router answers {status}"
        return json.loads(body)

    @staticmethod
    def _set(state: dict[str, Any]) -> dict[str, str]:
        own = {name: state[name] for name in ("dispatch", "first_token")}
        return {**state["policies"], **own}

    def _wrong(self) -> str:
        down = [f"{w.name} is {w.status}" for w in self.up.workers if w.status != "ready"]
        state = self._state()
        for row in state["workers"]:
            if not row["healthy"]:
                down.append(f"the router does not use {row['name']}")
            if row["inflight"]:
                down.append(f"{row['name']} has {row['inflight']} requests")
        down += [f"{state[name]} {name}" for name in ("running", "queued") if state.get(name)]
        return ", ".join(down)
