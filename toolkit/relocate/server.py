"""One worker's expert map, over HTTP (`patches.relocate`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.contract.paths import PLACEMENT
from toolkit.launch.keys import headers_at
from toolkit.placement import Placement, Topology
from toolkit.relocate.errors import RelocationError

if TYPE_CHECKING:
    import aiohttp

    from toolkit.placement.relocation import Step


class Stale(RelocationError):
    """Somebody else has changed the map meanwhile, or is about to."""


@dataclass(frozen=True)
class Present:
    """The map as it is. `placement` is of the layers that have experts: `layers` numbers them."""

    serial: int
    placement: Placement
    layers: tuple[int, ...]
    topology: Topology
    expert_bytes: int
    nearest: bool
    """Whether a token goes to the nearest replica; else to each in turn."""


@dataclass(frozen=True, slots=True)
class Done:
    """What an order took: seconds that the slowest rank stood still, bytes between ranks."""

    serial: int
    seconds: float
    bytes: int


class Server:
    """The worker at a URL."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def present(self) -> Present:
        """Its map.

        Raises:
            RelocationError: its experts cannot be moved, or it does not answer.
        """
        told = await self._call("GET")
        if told["obstacle"]:
            raise RelocationError(f"experts of {self.url} cannot be moved: {told['obstacle']}")
        layers = tuple(told["moe_layers"])
        rows = np.array([told["layers"][str(layer)] for layer in layers])
        return Present(
            told["serial"],
            Placement(rows, told["experts"], told["gpus"]),
            layers,
            Topology(told["gpus"], told["gpus_per_node"]),
            told["expert_bytes"],
            told["dispatch"] == "static",
        )

    async def order(self, present: Present, step: Step) -> Done:
        """Install a step.

        Raises:
            Stale: the map is another one by now.
            RelocationError: it was refused, or there is no answer.
        """
        rows = {str(present.layers[row]): list(slots) for row, slots in step.rows.items()}
        told = await self._call("POST", {"serial": present.serial, "layers": rows})
        return Done(told["serial"], told["seconds"], told["bytes"])

    async def _call(self, method: str, body: Any = None) -> dict[str, Any]:
        import aiohttp

        try:
            async with self._session.request(
                method, self.url + PLACEMENT, json=body, headers=headers_at(self.url)
            ) as answer:
                status = answer.status
                told: dict[str, Any] = {}
                if status != 404:
                    told = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise RelocationError(f"no answer from {self.url}: {error}") from error
        if status == 404:
            raise RelocationError(
                f"{self.url} has no {PLACEMENT}: set `relocate: true` for its role and launch again"
            )
        if status == 409:
            raise Stale(f"{self.url}: {told.get('error', status)}")
        if status != 200:
            raise RelocationError(f"{self.url}: {told.get('error', status)}")
        return told
