"""Orders to a deployment that runs: move requests, empty a worker, end it, start it again.

Requests are the router's, processes are the launcher's: a worker is emptied by the one before it is
ended by the other.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.launch import isolation, keys, orders
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.orders import LaunchOrder
from toolkit.launch.router_admin import RouterAdmin
from toolkit.launch.runs import Run
from toolkit.launch.state import read_state

LOOK_S = 0.1
BEYOND_S = 15.0
"""A router may take so much longer than the deadline that it was given."""
UP_S = 600.0
"""A worker is given up that is not back after so long."""


@dataclass(frozen=True)
class Drained:
    """What a drain came to; the router's words."""

    worker: str
    moved: int
    left: int
    stays: dict[str, int]
    seconds: float

    def __str__(self) -> str:
        moved = f"{self.moved} moved, " if self.moved else ""
        if not self.left:
            return f"{self.worker}: empty after {self.seconds:.1f} s ({moved}nothing left)"
        why = "; ".join(f"{count}: {reason}" for reason, count in self.stays.items())
        return f"{self.worker}: {self.left} left after {self.seconds:.1f} s ({moved}{why})"


class Operator:
    """Gives orders to one run.

    Raises LaunchError where they cannot be given: no router of ours, a launcher that is gone.
    """

    def __init__(self, run: Run) -> None:
        self._folder = run.folder
        state = run.state
        if not run.launched:
            what, repair = "its launcher is gone", "start it anew: toolkit launch FILE.yaml"
            raise LaunchError([Problem(str(run.folder), what, repair)])
        if state.get("phase") != "ready":
            what = f"it is {state.get('phase')}, and takes orders when it is ready"
            raise LaunchError([Problem(run.name, what)])
        if not state.get("admin_url"):
            what = "it has no router that takes orders"
            raise LaunchError([Problem(run.name, what, "use router: {kind: toolkit}")])
        self._run_id = str(state["run_id"])
        self.router = RouterAdmin(str(state["admin_url"]), keys.admin_key(state), self._run_id)
        if state.get("isolated"):
            isolation.enter(state["pid"])

    def workers(self, role: str | None = None) -> list[str]:
        """Names of its workers, as the router knows them; of one role, in its order."""
        rows = self.table()["workers"]
        names = [row["name"] for row in rows if role is None or row["role"] == role]
        return list(dict.fromkeys(names))

    def url_of(self, worker: str) -> str:
        """Where a worker answers."""
        for row in self.table()["workers"]:
            if row["name"] == worker:
                return str(row["url"])
        known = ", ".join(self.workers())
        raise LaunchError([Problem(worker, "no worker of this run", f"name one of {known}")])

    def table(self) -> dict[str, Any]:
        """What the router says in GET /workers."""
        return self.router.get("/workers")

    def migrate(self, body: dict[str, Any]) -> dict[str, Any]:
        """POST /admin/migrate."""
        return self.router.post("/admin/migrate", body, UP_S)

    def drain(self, worker: str, deadline_s: float) -> Drained:
        """Hold a worker and empty it, as far as that can be done in time."""
        body = {"worker": worker, "deadline_s": deadline_s}
        told = self.router.post("/admin/drain", body, deadline_s + BEYOND_S)
        return Drained(worker, told["moved"], told["left"], told["stays"], told["seconds"])

    def undrain(self, worker: str) -> None:
        """Let it have requests again."""
        self.router.post("/admin/drain", {"worker": worker, "undo": True}, BEYOND_S)

    def stop(self, worker: str) -> None:
        """End its processes. Returns when they are gone."""
        self._order("stop", worker, lambda row, _: row["status"] == "stopped")

    def start(self, worker: str) -> None:
        """Start what was stopped. Returns when it is ready and the router uses it."""
        if all(row["status"] != "stopped" for row in self._rows(worker)):
            return
        self._order("start", worker, lambda row, _: row["status"] == "ready")
        self._until_used(worker)

    def restart(self, worker: str) -> None:
        """End its processes and start them again. Returns when the router uses it."""
        self._order(
            "restart",
            worker,
            lambda row, before: row["status"] == "ready" and row["restarts"] > before["restarts"],
        )
        self._until_used(worker)

    def _order(
        self,
        what: orders.What,
        worker: str,
        done: Callable[[dict[str, Any], dict[str, Any]], bool],
    ) -> None:
        before = {row["name"]: row for row in self._rows(worker)}
        orders.give(self._run_id, LaunchOrder(what, worker))
        deadline = time.monotonic() + UP_S
        while not all(done(row, before[row["name"]]) for row in self._rows(worker)):
            self._wait(deadline, f"{worker} was told to {what}")

    def _until_used(self, worker: str) -> None:
        deadline = time.monotonic() + UP_S
        while True:
            rows = [row for row in self.table()["workers"] if row["name"] == worker]
            if rows and all(row["healthy"] for row in rows):
                return
            self._wait(deadline, f"{worker} is up, and the router was to use it")

    def _wait(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise LaunchError([Problem(what, f"not so after {UP_S:.0f} s", "toolkit logs, status")])
        time.sleep(LOOK_S)

    def _rows(self, worker: str) -> list[dict[str, Any]]:
        """Of its processes in state.json; one for each node. LaunchError: it is none of ours."""
        state = read_state(self._folder)
        rows: Sequence[dict[str, Any]] = state["workers"]
        mine = [
            row
            for row in rows
            if row["name"] == worker or row["name"].startswith(f"{worker}-node-")
        ]
        if not mine:
            known = ", ".join(row["name"] for row in rows)
            raise LaunchError([Problem(worker, f"no worker of this run; they are {known}")])
        return mine
