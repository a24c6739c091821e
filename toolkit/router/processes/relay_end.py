"""A relay's end of the link: it finds the decider process, again where it must, and takes what that
says of workers."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import msgspec

from toolkit.router.asks import AskedPlane
from toolkit.router.processes import wire
from toolkit.router.processes.link import ProcessLink
from toolkit.router.quiet import where
from toolkit.router.request import Wanted

if TYPE_CHECKING:
    from toolkit.router.configured_workers import ConfiguredWorkers
    from toolkit.router.draining import Draining
    from toolkit.router.processes.remote_channel import RemoteChannel
    from toolkit.router.switches import Switches

log = logging.getLogger("toolkit.router")

LINKS, HTTP = "links.sock", "http.sock"
"""In the folder that the processes of a router share: where the decider process takes links, and
where it answers what clients ask of it."""
AGAIN_S = 0.02
"""A relay without a decider process looks for one so often."""


class RelayEnd:
    """See the module. `relay`: its place."""

    def __init__(
        self,
        folder: Path,
        relay: int,
        channel: RemoteChannel,
        known_workers: ConfiguredWorkers,
        switches: Switches,
        draining: Draining,
    ) -> None:
        self._path = str(folder / LINKS)
        self._relay = relay
        self._channel = channel
        self._workers = known_workers.workers
        self._switches = switches
        self._draining = draining
        self._link: ProcessLink[Any] | None = None
        self._plane: AskedPlane | None = None
        self._gone = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()
        self.told = asyncio.Event()
        """The decider process has said how things are."""

    async def run(self, plane: AskedPlane) -> None:
        """Be linked, until cancelled. `plane`: whom the control plane asks."""
        self._plane = plane
        loop = asyncio.get_running_loop()
        while True:
            self._gone.clear()
            try:
                await loop.create_unix_connection(
                    lambda: ProcessLink(wire.DeciderFrame, self), path=self._path
                )
                await self._gone.wait()
                log.warning("the deciding process is gone; streams go on")
            except OSError:
                await asyncio.sleep(AGAIN_S)

    def say(self, message: wire.FromRelay) -> None:
        """To the decider process, if it is there."""
        if self._link is not None:
            self._link.send(message)

    def linked(self, link: ProcessLink[Any]) -> None:
        """A decider process is there."""
        self._link = link
        self._channel.linked(link, self._relay, os.getpid())

    def lost(self, link: ProcessLink[Any]) -> None:
        """It is gone."""
        self._link = None
        self._channel.lost()
        self._gone.set()

    def take(self, link: ProcessLink[Any], message: wire.FromDecider) -> None:
        """What it says."""
        channel = self._channel
        channel.heard_at = monotonic()
        match message:
            case wire.WireBeat():
                self.told.set()
                for worker, dp_rank, empty, step in message.ranks:
                    rank = self._workers[worker].ranks[dp_rank]
                    if empty is not None:
                        rank.give_up_lost(empty, channel.heard_at)
                    if step:
                        rank.silence.stepped(channel.heard_at)
            case wire.WireHealth():
                self._workers[message.worker].take_health(message.healthy, message.open)
            case wire.WireHello():
                self._workers[message.worker].take_hello(message.hello)
            case wire.WireGivenUp():
                self._workers[message.worker].give_up(message.why, message.kind)
            case wire.WireMoving():
                self._workers[message.worker].moving(message.event)
            case wire.WireSwitches():
                self._switch(message)
            case wire.WireAsk():
                task = asyncio.get_running_loop().create_task(self._answer(link, message))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            case _:
                channel.take(message)

    def _switch(self, told: wire.WireSwitches) -> None:
        switches = self._switches
        switches.first_token = cast(Any, told.first_token)
        switches.moves = cast(Any, told.moves)
        switches.early_choice = told.early_choice
        switches.wanted = Wanted(*told.wanted)
        self._channel.quarantines = told.quarantines
        self._draining.on = told.draining or self._draining.ending

    async def _answer(self, link: ProcessLink[Any], asked: wire.WireAsk) -> None:
        assert self._plane is not None
        try:
            told = wire.WireAnswer(
                asked.ask, msgspec.to_builtins(await self._plane.answer(asked.question))
            )
        except Exception as error:  # its text may hold anything
            told = wire.WireAnswer(asked.ask, None, where(error))
        link.send(told)
