"""Orders to a router: what it is told, and an upgrade that is followed to its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from toolkit.bounded_files import parse_json
from toolkit.contract.headers import RUN as HEADER
from toolkit.launch import readiness
from toolkit.launch.errors import LaunchError, Problem

UPGRADE = "/admin/upgrade"
ANSWER_S = 15.0
LOOK_S = 0.1
SILENT_S = 30.0
"""A router that says nothing for so long in an upgrade is given up."""


class NoAnswer(LaunchError):
    """A router has not answered, or its deciding process has not: another one may."""


@dataclass(frozen=True)
class RouterAdmin:
    """Where a router takes orders. `key`: the admin's; `run_id`: orders are for this run's only;
    `name`: of its process.

    Raises LaunchError with what the router says where it refuses.
    """

    url: str
    key: str | None = None
    run_id: str = ""
    name: str = "router"

    def post(self, path: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        """An order, and what came of it."""
        headers = {HEADER: self.run_id} if self.run_id else {}
        status, answer = readiness.post(self.url + path, body, timeout, self.key, headers)
        if status != 200:
            self.refused(path, status, answer)
        told: dict[str, Any] = parse_json(answer)
        return told

    def get(self, path: str) -> dict[str, Any]:
        """What it says."""
        seen = readiness.ask(self.url + path, key=self.key)
        if seen.status != 200 or (self.run_id and seen.run not in (None, self.run_id)):
            self.refused(path, seen.status, seen.body)
        told: dict[str, Any] = parse_json(seen.body)
        return told

    def refused(self, path: str, status: int, answer: bytes) -> NoReturn:
        """LaunchError, with its words."""
        try:
            said = parse_json(answer)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            said = answer[:200].decode("utf-8", "replace")
        kind = NoAnswer if status in (0, 503) else LaunchError
        raise kind([Problem(f"{self.url}{path}", f"{status or 'no answer'}: {said}")])

    def upgrade(self, drain_s: float | None) -> Iterator[dict[str, Any]]:
        """Have new code take over. How far that is, again and again: the last time `phase` is
        "done" or "failed"."""
        body = {} if drain_s is None else {"drain_s": drain_s}
        told = self.post(UPGRADE, body, ANSWER_S)
        number, heard = told["number"], time.monotonic()
        while True:
            yield told
            if told["phase"] in ("done", "failed"):
                return
            time.sleep(LOOK_S)
            try:
                told = self.get(UPGRADE)
            except LaunchError:  # its deciding process is being replaced
                if time.monotonic() - heard > SILENT_S:
                    raise
                continue
            heard = time.monotonic()
            if told["number"] != number:
                what = "the router ended amid the upgrade, and runs anew"
                raise LaunchError([Problem(self.url, what, "see its log")])
