"""Which deaths of workers the run's routers ascribe to poisonous requests.

Such a request kills any worker that gets it, so the worker is not to blame: its death does not
count towards giving it up. `GET /workers` of our router says `"poison": {worker name: deaths}`.
Of several routers the one that ascribes most counts: two may mean the same death.
"""

import re

from toolkit.bounded_files import parse_json
from toolkit.launch import keys, readiness
from toolkit.launch.plan import Plan

ASK_EVERY = 5.0
"""Seconds between two questions while there are deaths that may have been poisonous."""
FIRST = 0.5
"""Seconds after a death before the router is asked: it has to see it, too."""


class Poison:
    """Asks the router, as long as there are deaths that count. Used by the supervisor's thread,
    `ask` by another one."""

    def __init__(self, plan: Plan) -> None:
        self._routers = [router for router in plan.routers if router.kind == "toolkit"]
        self._next: float | None = None
        self._until = 0.0

    @property
    def timer(self) -> float | None:
        """When (monotonic s) to look at `due`; None: not before a worker dies."""
        return self._next

    def after(self, now: float, window: float) -> None:
        """A worker died at `now`; its death counts for `window` s."""
        if self._routers:
            self._next, self._until = now + FIRST, now + window

    def due(self, now: float) -> bool:
        """True when `ask` is to be called now."""
        if self._next is None or now < self._next:
            return False
        self._next = now + ASK_EVERY if now < self._until else None
        return True

    def ask(self) -> dict[str, int]:
        """Deaths by poison of each worker, by name. NotReady when no router says."""
        told: list[dict[str, int]] = []
        for router in self._routers:
            key = keys.admin_key(router.config or {})
            status, body = readiness.get(f"{router.admin_url}/workers", key=key)
            if status == 200:
                told.append(_counts(parse_json(body).get("poison")))
        if not told:
            raise readiness.NotReady("no router says /workers")
        names = {name for counts in told for name in counts}
        return {name: max(counts.get(name, 0) for counts in told) for name in names}

    @staticmethod
    def of(counts: dict[str, int], name: str) -> int:
        """The count of a process: all nodes of a worker share that worker's."""
        return counts.get(re.sub(r"-node-\d+$", "", name), 0)


def _counts(poison: object) -> dict[str, int]:
    rows = poison.items() if isinstance(poison, dict) else ()
    return {str(name): count for name, count in rows if isinstance(count, int)}
