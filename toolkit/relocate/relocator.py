"""Watches what a server's requests are routed to, decides when its experts move, and moves them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.placement.online import Ids, Online, PlacementDecision, RelocationSettings
from toolkit.placement.present import Present
from toolkit.placement.relocation import steps
from toolkit.profile.tap import Tap
from toolkit.profile_folder.errors import ProfileError
from toolkit.relocate.errors import RelocationError
from toolkit.relocate.pace import Pace
from toolkit.relocate.server import Server, Stale

if TYPE_CHECKING:
    import aiohttp

    from toolkit.placement.online import Cause
    from toolkit.placement.relocation import Step

log = logging.getLogger("toolkit.relocate")

Asked = list[tuple[asyncio.Future[dict[str, Any]], bool]]
"""Who waits for a decision, and whether nothing is to be moved for him."""

LOOK_S = 1.0
AGAIN_S = 2.0
"""Until a server that went away is asked again."""
REST = 10.0
"""Between two orders, in times of what the last one took."""
TRIES = 3
MOST_REST_S = 60.0
STEP_S = 0.05
"""A decode step, until some have been seen."""
LAST_STEPS = 512
"""Whose median is a step: one in which the machine was suspended does not count."""


@dataclass
class Figures:
    """Totals since the start."""

    decisions: Counter[str] = field(default_factory=Counter)
    orders: int = 0
    slots: int = 0
    bytes: int = 0
    stall_s: float = 0.0
    longest_s: float = 0.0
    stale: int = 0
    dropped: int = 0
    """Frames of experts that were read too slowly: their requests are in no decision."""


class Relocator:
    """Of one server. `dry_run`: decides, and moves nothing."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        settings: RelocationSettings,
        share: float = 0.1,
        stall_s: float = 0.0,
        dry_run: bool = False,
    ) -> None:
        self.server = Server(session, url)
        self.figures = Figures()
        self.decided: deque[dict[str, Any]] = deque(maxlen=20)
        self.state = "starting"
        self._session = session
        self._settings = settings
        self._share = share
        self._pace = Pace(stall_s)
        self._dry_run = dry_run
        self._step_s = STEP_S
        self._last_steps: deque[float] = deque(maxlen=LAST_STEPS)
        self._online: Online | None = None
        self._asked: Asked = []
        self._dropped = 0
        """Frames that the present tap had dropped when it was last looked at."""

    def status(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "url": self.server.url,
            "state": self.state,
            "dry_run": self._dry_run,
            "kind": self._settings.kind,
            "step_s": self._step_s,
            "tokens": self._online.tokens if self._online else 0,
            **asdict(self.figures),
            "decisions": dict(self.figures.decisions),  # `asdict` counts a Counter's pairs
            "decided": list(self.decided),
        }

    async def ask(self, dry_run: bool) -> dict[str, Any]:
        """A decision now, and what came of it.

        Raises:
            RelocationError: too little was seen, or the server does not do it.
        """
        asked = asyncio.get_running_loop().create_future()
        self._asked.append((asked, dry_run))
        told: dict[str, Any] = await asked
        return told

    async def run(self) -> None:
        """Until cancelled. A server that goes away is waited for."""
        while True:
            try:
                await self._watch()
            except (ProfileError, RelocationError) as error:
                if self.state != str(error):
                    log.warning("%s", error)
                self.state = str(error)
                self._refuse(RelocationError(str(error)))
            await asyncio.sleep(AGAIN_S)

    async def _watch(self) -> None:
        present = await self.server.present()
        if self._online is None or self._online.topology != present.topology:
            self._online = Online(present.topology, self._settings)
        async with Tap(self._session, [self.server.url], self._share, events=False) as tap:
            if not tap.hellos[self.server.url].experts.captured:
                raise RelocationError(
                    f"{self.server.url} does not say what its tokens are routed to: launch it with "
                    "`relocate: true` or --enable-return-routed-experts"
                )
            self.state, self._dropped = "watching", 0
            while tap.lost is None:
                await asyncio.sleep(LOOK_S)
                requests, taken = self._take(tap, present.layers)
                self._online.observe(requests, taken)
                cause: Cause | None = "asked" if self._asked else None
                if cause is None:
                    cause = await asyncio.to_thread(self._online.due, present.placement)
                if cause is not None:
                    present = await self._decided(self._online, cause)
            raise RelocationError(tap.lost)

    def _take(self, tap: Tap, layers: Sequence[int]) -> tuple[list[Ids], int]:
        """Requests that ended since the last look, and the decode steps of the busiest rank."""
        chosen = list(layers)
        found = [
            rows.ids[:, chosen]
            for phases in tap.heard.take_all()
            for rows in phases.values()
            if rows.whole and len(rows.ids)
        ]
        columns, taken, seconds = tap.heard.columns, 0, []
        for blocks in tap.heard.steps.values():
            rows = np.concatenate(blocks)
            decode = rows[rows[:, columns.index("decode")] == 1]
            taken = max(taken, len(decode))
            seconds += decode[:, columns.index("seconds")].tolist()
        tap.heard.steps.clear()
        tap.heard.finished.clear()
        dropped, self._dropped = tap.heard.dropped - self._dropped, tap.heard.dropped
        self.figures.dropped += dropped
        if dropped:
            log.warning(
                "%s: %d frames were read too slowly and dropped; a smaller --share sends fewer",
                self.server.url,
                dropped,
            )
        self._last_steps.extend(each for each in seconds if 0 < each < math.inf)
        if self._last_steps:
            self._step_s = median_low(self._last_steps)
        return found, taken

    async def _decided(self, online: Online, cause: Cause) -> Present:
        """`_decide` for whoever has asked by now: they hear of it when it comes to nothing, too."""
        asked, self._asked = self._asked, []
        try:
            return await self._decide(online, cause, asked)
        except RelocationError:
            self._asked = asked + self._asked  # `run` tells them
            raise

    async def _decide(self, online: Online, cause: Cause, asked: Asked) -> Present:
        present = await self.server.present()
        dry = self._dry_run or (cause == "asked" and all(only for _, only in asked))
        cost = self._pace.cost(present.expert_bytes, self._step_s)
        try:
            decision = await asyncio.to_thread(
                online.decide, present.placement, self._step_s, cost, cause
            )
        except ValueError as error:
            self._asked = asked
            self._refuse(RelocationError(str(error)))
            return present
        told = _said(decision)
        if decision.move and not dry:
            told |= await self._move(decision)
            present = await self.server.present()
        else:
            told["outcome"] = "would move" if decision.move else "stays"
        self.figures.decisions[told["outcome"]] += 1
        self.decided.append(told)
        log.info("%s: %s (%s)", cause, told["outcome"], decision.why)
        for future, _ in asked:
            if not future.done():
                future.set_result(told)
        return present

    def _refuse(self, error: RelocationError) -> None:
        asked, self._asked = self._asked, []
        for future, _ in asked:
            if not future.done():
                future.set_exception(error)

    async def _move(self, decision: PlacementDecision) -> dict[str, Any]:
        """Order by order, until the target is there or the rest costs more than it saves."""
        assert decision.target is not None
        self.state = "moving"
        orders, sent, stall_s, longest_s, tries, outcome = 0, 0, 0.0, 0.0, 0, "moved"
        present = await self.server.present()
        most = self._pace.slots(self._step_s)
        queue = await asyncio.to_thread(
            steps, present.placement, decision.target, present.topology, most
        )
        while queue:
            step, *queue = queue
            try:
                done = await self.server.order(present, step)
            except Stale:
                self.figures.stale += 1
                tries += 1
                if tries > TRIES:
                    outcome = "given up: somebody else moves experts here"
                    break
                done = None
            if done is not None:
                orders, sent = orders + 1, sent + done.bytes
                stall_s, longest_s = stall_s + done.seconds, max(longest_s, done.seconds)
                self._pace.took(done.seconds, step.copies.written, done.bytes)
                self._count(step, done.seconds, done.bytes)
                if self._too_dear(queue, present, decision):
                    outcome = "stopped: the rest costs more than it saves"
                    break
                rest = min(REST * done.seconds, MOST_REST_S)
                await asyncio.sleep(max(self._step_s, rest))
            fresh = self._pace.slots(self._step_s)
            present = await self.server.present()
            if queue and (done is None or not 0.75 <= fresh / most <= 1.33):
                most = fresh
                queue = await asyncio.to_thread(
                    steps, present.placement, decision.target, present.topology, most
                )
        self.state = "watching"
        return {
            "outcome": outcome, "orders": orders, "bytes": sent, "stall_s": round(stall_s, 6),
            "longest_s": round(longest_s, 6), "serial": present.serial,
        }  # fmt: skip

    def _count(self, step: Step, seconds: float, sent: int) -> None:
        figures = self.figures
        figures.orders += 1
        figures.slots += step.copies.written
        figures.bytes += sent
        figures.stall_s += seconds
        figures.longest_s = max(figures.longest_s, seconds)

    def _too_dear(
        self, queue: Sequence[Step], present: Present, decision: PlacementDecision
    ) -> bool:
        if not decision.saved_s or self._settings.kind.endswith("@paper"):
            return False
        left = sum(step.copies.sent for step in queue)
        written = sum(step.copies.written for step in queue)
        cost = self._pace.cost(present.expert_bytes, self._step_s)
        share = written / max(1, decision.written)
        return bool(written) and cost.seconds(left, written) > decision.saved_s * share


def _said(decision: PlacementDecision) -> dict[str, Any]:
    told = asdict(decision)
    del told["target"], told["move"]
    return {
        name: round(value, 6) if isinstance(value, float) else value for name, value in told.items()
    }
