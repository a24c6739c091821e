"""Where each decode server's experts lie, asked of the servers whose experts move."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolkit.contract.paths import PLACEMENT
from toolkit.contract.placement import decode
from toolkit.policies.support.expert_map import ExpertMap
from toolkit.router.events import fetch
from toolkit.router.worker import Worker
from toolkit.signatures.space import SignatureSpace

if TYPE_CHECKING:
    from toolkit.placement.base import Placement
    from toolkit.placement.dispatch import Dispatch

log = logging.getLogger("toolkit.router")

ANSWERS = "relocation_order"
"""The patch that answers GET /toolkit/placement."""
WAIT_LIMIT_S = 60.0
"""For an answer: the server's ranks give it between two steps, and after a move under way."""
AGAIN_S = (1.0, 30.0)
"""Until a server that gave none is asked again: at first, and at most."""


@dataclass(frozen=True, eq=False)
class Found:
    """A server's map. `of_ranks`: as its DP ranks see it, where several share the experts."""

    serial: int
    placement: Placement
    of_ranks: ExpertMap | None


@dataclass
class _Watched:
    """One server. `changed`: its map is to be asked for; `serial`: of the map that is known."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    serial: int | None = None
    problem: str = ""
    asking: asyncio.Task[None] | None = None


class MapWatch:
    """Asks a server for its map when it says hello, and whenever it says that the map has changed;
    `place` is told the map of a server whose DP ranks share their experts, `know` every server's
    placement, each None where there is none.

    The last map known stays while a newer one of the same process is asked for: it decides which
    rank is tried first, never whether an answer is right.
    """

    def __init__(
        self,
        space: SignatureSpace,
        place: Callable[[str, ExpertMap | None], None],
        know: Callable[[str, Placement | None], None],
    ) -> None:
        self._space = space
        self._place = place
        self._know = know
        self._servers: dict[str, _Watched] = {}

    def greet(self, worker: Worker) -> None:
        """The worker has said what it is; it may be another one than before."""
        if ANSWERS in worker.hello.patches and worker.config.role == "decode":
            known = self._servers.setdefault(worker.name, _Watched())
            known.changed.set()
            if known.asking is None or known.asking.done():
                known.asking = asyncio.create_task(self._follow(worker, known))
        elif left := self._servers.pop(worker.name, None):
            if left.asking is not None:
                left.asking.cancel()
            self._tell(worker.name, None)

    def replaced(self, worker: Worker) -> None:
        """Another process answers there: its experts lie where it has put them."""
        known = self._servers.get(worker.name)
        if known is not None and known.serial is not None:
            known.serial = None
            self._tell(worker.name, None)

    def placed(self, worker: Worker, serial: int) -> None:
        """The worker says that its map has this number now."""
        known = self._servers.get(worker.name)
        if known is not None and known.serial != serial:
            known.changed.set()

    async def stop(self) -> None:
        tasks = [known.asking for known in self._servers.values() if known.asking is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def describe(self) -> dict[str, Any]:
        """By server: the `serial` of its map (None: none is known), and what is wrong with it."""
        return {
            name: {"serial": known.serial} | ({"problem": known.problem} if known.problem else {})
            for name, known in sorted(self._servers.items())
        }

    def _tell(self, server: str, found: Found | None) -> None:
        """Of one server. ValueError: the map is of no use here."""
        self._know(server, None if found is None else found.placement)
        self._place(server, None if found is None else found.of_ranks)

    async def _follow(self, worker: Worker, known: _Watched) -> None:
        wait: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await known.changed.wait()
            known.changed.clear()
            try:
                found = await self._fetch(worker)
                self._tell(worker.name, found)
            except (ValueError, ConnectionError) as error:
                known.serial = None
                self._tell(worker.name, None)
                if str(error) != known.problem:
                    log.warning("ELDR: no map of the experts of %s: %s", worker.name, error)
                known.problem = str(error)
                passing = isinstance(error, ConnectionError)
                wait = min(2 * (wait or AGAIN_S[0] / 2), AGAIN_S[1]) if passing else None
            else:
                known.serial, known.problem, wait = found.serial, "", None

    async def _fetch(self, worker: Worker) -> Found:
        """What the server says.

        Raises:
            ConnectionError: the server does not say it now.
            ValueError: it says one that is of no use here, and would again.
        """
        status, body = await fetch(worker, PLACEMENT, WAIT_LIMIT_S)
        if status != 200:
            raise ConnectionError(f"it answered {status or 'nothing'}")
        ranks = len(worker.ranks) if worker.shares_experts else 1
        return await asyncio.to_thread(_found, body, self._space, ranks)


def _found(body: bytes, space: SignatureSpace, ranks: int) -> Found:
    """The server's answer. `ranks`: that share its experts."""
    # Here: only routers whose servers move experts need them.
    from toolkit.placement.present import Present
    from toolkit.placement.rank_map import rank_map

    state = decode(body)
    if state.obstacle:
        raise ValueError(state.obstacle)
    present = Present.of(state)
    of_ranks = None
    if ranks > 1:
        kind: Dispatch = "nearest" if present.nearest else "random"
        of_ranks = rank_map(present.placement, present.topology, space, ranks=ranks, dispatch=kind)
    return Found(present.serial, present.placement, of_ranks)
