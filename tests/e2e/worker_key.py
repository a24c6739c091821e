"""The key of a run's workers, for tests that speak to a worker as the router does."""

from pathlib import Path
from typing import Any

from toolkit.contract.ticket import TICKET_KEY
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch.running import Running


def of(deployment: Running) -> str:
    """The key that the workers really have."""
    pid = next(worker.pid for worker in deployment.workers if worker.pid)
    for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name.decode() == WORKER_KEY_VARIABLE:
            return value.decode()
    raise AssertionError("the workers have no key")


def headers(deployment: Running) -> dict[str, str]:
    """What a worker asks of its callers."""
    return {"Authorization": f"Bearer {of(deployment)}"}


def with_ticket(body: dict[str, Any], ticket: dict[str, Any]) -> dict[str, Any]:
    """The body with a ticket where each endpoint has its `custom_params`."""
    custom = {"custom_params": {TICKET_KEY: ticket}}
    if "sampling_params" in body:
        return body | {"sampling_params": body["sampling_params"] | custom}
    return body | custom
