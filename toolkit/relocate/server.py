"""One worker's expert map, over HTTP (`patches.relocate`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit.contract.paths import PLACEMENT
from toolkit.contract.placement import PlacementState
from toolkit.launch.keys import headers_at
from toolkit.placement.present import Present
from toolkit.relocate.errors import RelocationError

if TYPE_CHECKING:
    import aiohttp

    from toolkit.placement.relocation import Step


class Stale(RelocationError):
    """Somebody else has changed the map meanwhile, or is about to."""


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
        try:
            state = msgspec.convert(told, PlacementState)
            if state.obstacle:
                raise RelocationError(f"experts of {self.url} cannot be moved: {state.obstacle}")
            return Present.of(state)
        except ValueError as error:  # and msgspec's
            raise RelocationError(f"{self.url} says no expert map: {error}") from error

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
