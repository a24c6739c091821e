"""What the processes of a router must agree on while some of them run older code than others."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.inspect import multi_type_info

from toolkit.router import asks
from toolkit.router.processes import shared, wire
from toolkit.router.processes.supervisor_state import SupervisorState
from toolkit.router.processes.switched_file import Switched
from toolkit.router.processes.upgrade_file import UpgradeProgress

if TYPE_CHECKING:
    from toolkit.settings.router.config import RouterConfig

_SAID = (wire.RelayFrame, wire.DeciderFrame, asks.RequestFigures, asks.MovableRequests, Switched,
         SupervisorState, UpgradeProgress)  # fmt: skip
_NAMES = {
    "messages": "its processes say other things to each other in the new code",
    "relays": "`relays` is another number",
    "address": "`host`, `port` or `admin_port` is another one",
    "workers": "`workers` are others",
}


class Agreement(msgspec.Struct, frozen=True):
    """`messages`: a digest of all that they say to each other, in frames, files and shared memory.
    A worker is its place among `workers` there."""

    messages: str
    relays: int
    address: tuple[str, int, int]
    workers: list[Any]


def agreement(config: RouterConfig, relays: int) -> Agreement:
    """Of processes with this code and this configuration."""
    said = repr((wire.MEANING, shared.CELLS, multi_type_info(_SAID)))
    return Agreement(
        hashlib.sha256(said.encode()).hexdigest(),
        relays,
        (config.host, config.port, config.admin_port),
        [worker.model_dump(mode="json") for worker in config.workers],
    )


def why_not(old: Agreement, new: dict[str, Any]) -> str:
    """Why processes of the two cannot be one router; empty: they can. `new`: in JSON's values, as
    the new code says it."""
    had = msgspec.json.decode(msgspec.json.encode(old))
    return "; ".join(_NAMES.get(name, name) for name in had | new if had.get(name) != new.get(name))
