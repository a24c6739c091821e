"""Tell a router how long starts take, and when a worker that has died is back.

Requests that find no worker of a role wait for as long as that takes (`toolkit.decide.returns`).
Only the launcher knows: it starts them. It tells at each change, and again until it is heard.
"""

from collections.abc import Iterable
from typing import Any

from toolkit.contract.headers import RUN
from toolkit.launch import keys, readiness
from toolkit.launch.background import Background
from toolkit.launch.plan import Plan, RouterPlan
from toolkit.launch.process import FINAL, RETRIED, Managed, Status

AGAIN_S = 2.0
SHORTEST_S = 1.0
"""A start that takes longer than usual is expected to end so much later."""


class ReturnReporter:
    """Watches the processes for changes, for one of the plan's routers. Used by one thread."""

    def __init__(self, plan: Plan, router: RouterPlan, run_id: str, background: Background) -> None:
        self._router = router
        self._url = router.admin_url
        self._run = {RUN: run_id} if router.local else {}
        self._first_delay = plan.restart.first_delay
        self._background = background
        self._told: Any = None
        self._asking = False
        self._again: float | None = None

    @property
    def timer(self) -> float | None:
        """When (monotonic s) to call `tick`; None: not before something changes."""
        return self._again

    def tick(self, processes: Iterable[Managed], now: float) -> None:
        """Tell the router, if there is something new."""
        everyone = list(processes)
        heard = not self._router.local or any(
            m.name == self._router.name and m.status is Status.READY for m in everyone
        )
        known = [(m.name, m.status, m.restarts, m.usual_start_s) for m in everyone]
        waits = self._again is not None and now < self._again
        if self._url is None or not heard or self._asking or known == self._told or waits:
            return
        body = {"workers": expected(everyone, now, self._first_delay)}
        self._asking, self._again = True, None

        def answer(result: Any) -> None:
            self._asking = False
            if isinstance(result, tuple) and result[0] == 200:
                self._told = known
            else:
                self._again = now + AGAIN_S

        self._background.ask(lambda: self._post(body), answer)

    def _post(self, body: dict[str, Any]) -> tuple[int, bytes]:
        key = keys.admin_key(self._router.config or {})
        return readiness.post(f"{self._url}/admin/returns", body, 5.0, key, self._run)


def expected(
    processes: Iterable[Managed], now: float, first_delay: float
) -> dict[str, dict[str, float | None]]:
    """By worker, as POST /admin/returns wants it: `usual_s`, what its last start took, and
    `back_in_s`, seconds until it serves; None: it will not. Those that serve HTTP alone."""
    return {
        m.name.removesuffix("-node-0"): {
            "usual_s": m.usual_start_s,
            "back_in_s": _back_in(m, now, first_delay),
        }
        for m in processes
        if m.role != "router" and m.url is not None and _is_known(m)
    }


def _is_known(m: Managed) -> bool:
    return m.usual_start_s is not None or m.status in FINAL


def _back_in(m: Managed, now: float, first_delay: float) -> float | None:
    if m.status in FINAL:
        return None
    usual_s = m.usual_start_s or 0.0
    if m.status is Status.READY:
        return 0.0
    if m.status in RETRIED:
        return max(0.0, m.next_start - now) + usual_s
    if m.status is Status.STARTING:
        return max(SHORTEST_S, m.started + usual_s - now)
    return first_delay + usual_s
