"""Ask the routers to take nothing new, and how much is still on its way."""

import time

from toolkit.bounded_files import parse_json
from toolkit.contract.headers import RUN as HEADER
from toolkit.launch import identity, keys, readiness
from toolkit.launch.plan import Plan, RouterPlan

PAUSE = 0.2


def left(plan: Plan, run_id: str) -> int:
    """Requests still in this host's routers: in flight, queued or parked. The call repeats the
    order to drain, so it may be the first one. A router that does not answer properly has none: it
    has died, or will be asked again. Raises NotReady when no router answers.
    """
    counts, silent = [], []
    for router in plan.own_routers:
        try:
            counts.append(_left(router, run_id))
        except readiness.NotReady as error:
            silent.append(str(error))
    if not counts:
        raise readiness.NotReady("; ".join(silent))
    if sum(counts):
        time.sleep(PAUSE)  # in a background thread: paces the polling, nothing waits for it
    return sum(counts)


def _left(router: RouterPlan, run_id: str) -> int:
    """In this one. NotReady also where it is not that of run `run_id`: then it is left alone."""
    url = router.admin_url
    assert url is not None, "our router"
    key = keys.admin_key(router.config or {})
    wrong = identity.stranger(url, run_id)
    if wrong is not None:
        raise readiness.NotReady(f"{wrong}; not this run's router")
    # It may have changed hands since: the order says for whom it is.
    mine = {HEADER: run_id}
    status, body = readiness.post(f"{url}/admin/drain", {}, timeout=5.0, key=key, headers=mine)
    if status != 200:
        raise readiness.NotReady(f"/admin/drain answered {status or 'nothing'}")
    status, body = readiness.get(f"{url}/workers", key=key)
    if status != 200:
        raise readiness.NotReady(f"/workers answered {status or 'nothing'}")
    return in_router(parse_json(body))


def in_router(answer: dict[str, object]) -> int:
    """The requests that an answer of /workers shows."""
    workers = answer.get("workers")
    rows = workers if isinstance(workers, list) else []
    flying = sum(int(row.get("inflight") or 0) for row in rows)
    waiting = [answer.get("parked"), answer.get("queued")]
    return flying + sum(w for w in waiting if isinstance(w, int))
