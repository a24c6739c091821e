"""Better stages for what decodes are planned beside the event loop."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from toolkit.decide import messages as m
from toolkit.router.quiet import where
from toolkit.router.worker_listener import WorkerListener

if TYPE_CHECKING:
    from toolkit.router.channel import Channel

log = logging.getLogger("toolkit.router")


class StagePlanning(WorkerListener):
    """Runs the decider's planner in a thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.tasks: set[asyncio.Task[None]] = set()
        """Plans that are being made."""

    def note(self, order: m.Noted) -> None:
        """What the decider wants to have planned, or has changed."""
        match order:
            case m.PlanStages():
                task = asyncio.get_running_loop().create_task(self._plan(order))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            case m.Restaged():
                log.info("stages are %s now", order.layout)
            case _:
                pass

    async def _plan(self, order: m.PlanStages) -> None:
        plan = order.planner.plan
        try:
            layout = await asyncio.to_thread(plan, order.live, order.layout, order.move_s)
        except Exception as error:  # the stages stay, and there is a next time
            log.error("stages were not planned: %s", where(error))
            return
        if layout is not None:
            self._channel.send(m.StagesPlanned(layout))
