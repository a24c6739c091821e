"""Orders to a deployment that runs: move requests, empty a worker, end it, start it again.

Requests are the routers', processes are the launcher's: a worker is emptied by the ones before it
is ended by the other. A router that is told to empty it tells all others, on other hosts too.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.launch import isolation, keys, orders
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.orders import LaunchOrder
from toolkit.launch.router_admin import NoAnswer, RouterAdmin
from toolkit.launch.runs import Run
from toolkit.launch.state import read_state

LOOK_S = 0.1
BEYOND_S = 15.0
"""A router may take so much longer than the deadline that it was given."""
UP_S = 600.0
"""A worker is given up that is not back after so long."""
HEARD_S = 10.0
"""Routers of other hosts have so long to use a worker that those of this host use."""


@dataclass(frozen=True)
class Drained:
    """What a drain came to; the routers' words. `unknown`: routers by name, and why they may have
    requests left there that nobody knows of."""

    worker: str
    moved: int
    left: int
    stays: dict[str, int]
    seconds: float
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """All routers say so."""
        return not self.left and not self.unknown

    def __str__(self) -> str:
        moved = f"{self.moved} moved, " if self.moved else ""
        what = "empty" if self.empty else f"{self.left} left"
        stays = [f"{count}: {reason}" for reason, count in self.stays.items()]
        unknown = [f"router {name}: {why}" for name, why in self.unknown.items()]
        why = "nothing left" if self.empty else "; ".join((*stays, *unknown))
        return f"{self.worker}: {what} after {self.seconds:.1f} s ({moved}{why})"


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
        self._run_id = str(state["run_id"])
        key = keys.admin_key(state)
        self.routers = [
            RouterAdmin(row["admin_url"], key, self._run_id, row["name"])
            for row in state.get("routers", ())
            if row["admin_url"]
        ]
        """Those that this launcher has started."""
        if not self.routers:
            what = "it has no router that takes orders here"
            repair = "use router: {kind: toolkit}; of several hosts, ask one that has a router"
            raise LaunchError([Problem(run.name, what, repair)])
        if state.get("isolated"):
            isolation.enter(state["pid"])

    def workers(self, role: str | None = None) -> list[str]:
        """Names of its workers, as its routers know them; of one role, in their order."""
        rows = self._rows_of(self.routers[0])
        names = [row["name"] for row in rows if role is None or row["role"] == role]
        return list(dict.fromkeys(names))

    def url_of(self, worker: str) -> str:
        """Where a worker answers."""
        for row in self._rows_of(self.routers[0]):
            if row["name"] == worker:
                return str(row["url"])
        known = ", ".join(self.workers())
        raise LaunchError([Problem(worker, "no worker of this run", f"name one of {known}")])

    def migrate(self, body: dict[str, Any]) -> dict[str, Any]:
        """POST /admin/migrate at a router, which asks all others, and at those of this host that it
        did not reach: until `count` of `from` have moved, or the one that has `rid` is found."""
        told: list[dict[str, Any]] = []
        refused: LaunchError | None = None
        reached = set[str]()
        left = body.get("count", 1)
        for router in self.routers:
            try:
                if router.get("/workers")["router"] in reached:
                    continue
                told.append(router.post("/admin/migrate", body, UP_S))
            except LaunchError as error:  # it is another one's, or this is no order at all
                refused = error
                continue
            reached |= set(told[-1].get("routers", ()))
            left -= len(told[-1]["moves"])
            if left <= 0:
                break
            body = body | {"count": left}
        if not told:
            assert refused is not None
            raise refused
        counts = ("moved", "kept", "ended", "lost")
        return {
            "moves": [move for each in told for move in each["moves"]],
            **{name: sum(each[name] for each in told) for name in counts},
            "stays": _added(each["stays"] for each in told),
        }

    def drain(self, worker: str, deadline_s: float) -> Drained:
        """Hold a worker and empty it, as far as that can be done in time."""
        body = {"worker": worker, "deadline_s": deadline_s}
        told, unknown = self._order_all("/admin/drain", body, deadline_s + BEYOND_S)
        if not all(each["held"] for each in told):
            raise LaunchError([Problem(worker, "the drain was undone meanwhile")])
        moved, left = (sum(each[name] for each in told) for name in ("moved", "left"))
        stays = _added(each["stays"] for each in told)
        return Drained(worker, moved, left, stays, max(each["seconds"] for each in told), unknown)

    def undrain(self, worker: str) -> dict[str, str]:
        """Let it have requests again. The routers that have not heard of it, by name, and why."""
        return self._order_all("/admin/drain", {"worker": worker, "undo": True}, BEYOND_S)[1]

    def _order_all(
        self, path: str, body: dict[str, Any], timeout: float
    ) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """An order to a router that tells all others, and to those of this host that it did not
        reach. What each of them says; and of the others that were not reached their names, and
        why."""
        told: list[dict[str, Any]] = []
        silent: NoAnswer | None = None
        asked, reached = set[str](), set[str]()
        for router in self.routers:
            try:
                name = router.get("/workers")["router"]
                if name not in reached:
                    told.append(router.post(path, body, timeout))
                    asked.add(name)
                    reached |= told[-1].get("routers", {}).keys()
            except NoAnswer as error:  # it learns of it when it is back
                silent = error
        if not told:
            assert silent is not None
            raise silent
        unknown: dict[str, str] = {}
        for each in told:
            unknown |= dict.fromkeys(each.get("unanswered", ()), "no answer")
            unknown |= each.get("refused", {})
        return told, {name: why for name, why in unknown.items() if name not in asked}

    @staticmethod
    def _rows_of(router: RouterAdmin) -> list[dict[str, Any]]:
        """What it says of workers in GET /workers."""
        rows: list[dict[str, Any]] = router.get("/workers")["workers"]
        return rows

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
        deadline, up_since = time.monotonic() + UP_S, None
        for router in self.routers:
            while True:
                all_rows = self._rows_of(router)
                rows = [row for row in all_rows if row["name"] == worker]
                if rows and all(row["healthy"] for row in rows):
                    up_since = up_since or time.monotonic()
                    heard = min(row.get("routers", 1) for row in rows)
                    most = max(row.get("routers", 1) for row in all_rows)
                    if heard == most or time.monotonic() - up_since > HEARD_S:
                        break
                self._wait(deadline, f"{worker} is up, and the {router.name} was to use it")

    def _wait(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise LaunchError([Problem(what, f"not so after {UP_S:.0f} s", "toolkit logs, status")])
        time.sleep(LOOK_S)

    def starts(self, worker: str) -> bool:
        """Whether this launcher has started it; others have a launcher on their own host."""
        return bool(self._own_rows(worker))

    def check_own(self, worker: str) -> None:
        """LaunchError: it is none that this launcher ends and starts."""
        self._rows(worker)

    def _rows(self, worker: str) -> list[dict[str, Any]]:
        """Of its processes in state.json; one for each node. LaunchError: it is none of ours."""
        mine = self._own_rows(worker)
        if not mine:
            known = ", ".join(row["name"] for row in read_state(self._folder)["workers"])
            raise LaunchError([Problem(worker, f"no worker of this run; they are {known}")])
        return mine

    def _own_rows(self, worker: str) -> list[dict[str, Any]]:
        rows: Sequence[dict[str, Any]] = read_state(self._folder)["workers"]
        return [
            row
            for row in rows
            if row["name"] == worker or row["name"].startswith(f"{worker}-node-")
        ]


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter[str]()))
