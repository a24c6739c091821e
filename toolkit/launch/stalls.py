"""Is a worker stuck? Its processes' heartbeats are read from outside, beside the loop's other work.

The launcher reads the files that the processes write, on its own host: it needs no router for that,
no HTTP of the worker, and no word of a process that hangs. Of a worker on several nodes each node's
launcher watches the ranks that report there.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from toolkit.contract import heartbeat
from toolkit.contract.heartbeat import HTTP, Beat
from toolkit.decide.watchdog import Health, StuckBounds, Watchdog
from toolkit.launch.process import Managed, Status
from toolkit.launch.scratch import heartbeats

NODE = re.compile(r"-node-\d+$")
"""How the name of a worker's part ends that is on one of several nodes."""
EVERY = 1.0
LATER_S = 1.0
"""So much longer than the router waits: its requests have gone elsewhere before the worker
ends, and it knows why."""


class WorkerStalls:
    """Reads the heartbeats of all workers that are ready. Used by one thread."""

    def __init__(self, bounds: StuckBounds, scratch: Path) -> None:
        self._on = bounds.stuck_s > 0
        self._scheduler = replace(bounds, stuck_s=bounds.stuck_s + LATER_S)
        # The process that serves HTTP tokenizes what clients send, which may hold Python's lock: a
        # text of 8 MB did for 13 s.
        self._http = replace(bounds, stuck_s=max(bounds.stuck_s, bounds.announced_s))
        self._scratch = scratch
        self._dogs: dict[tuple[str, str], Watchdog] = {}
        self._next = 0.0

    def timer(self, processes: Iterable[Managed]) -> float | None:
        """When (monotonic s) to call `tick`; None: nobody is to be watched."""
        watched = self._on and any(self._watches(m) for m in processes)
        return self._next if watched else None

    def begin(self, m: Managed) -> None:
        """It is about to be started: what it said in its last life does not count."""
        folder = heartbeats(self._scratch, m.name)
        for key in [key for key in self._dogs if key[0] == m.name]:
            del self._dogs[key]
        with contextlib.suppress(OSError):  # without a folder it is not watched
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder, mode=0o700)  # noqa: PTH103

    def tick(self, processes: Iterable[Managed], now: float) -> list[tuple[Managed, str]]:
        """Those that are stuck, with the reason, when it is time to look."""
        if not self._on or now < self._next:
            return []
        self._next = now + EVERY
        found = [(m, self._look(m, now)) for m in processes if self._watches(m)]
        return [(m, why) for m, why in found if why]

    @staticmethod
    def _watches(m: Managed) -> bool:
        return m.status is Status.READY and m.role != "router"

    def _look(self, m: Managed, now: float) -> str:
        beats = heartbeat.read_all(heartbeats(self._scratch, m.name))
        serves = beats.get(HTTP)
        works = serves is not None and serves.works
        why, allowed_s = "", self._allowed(m, beats)
        for name, beat in beats.items():
            bounds = self._http if name == HTTP else self._scheduler
            dog = self._dogs.setdefault((m.name, name), Watchdog(bounds))
            # The process that serves HTTP beats from a thread, with work or without.
            health = dog.read(beat, works or name == HTTP, now, allowed_s)
            if health is Health.STUCK and not why:
                why = f"{name}: {dog.describe()}"
        return why

    def _allowed(self, m: Managed, beats: dict[str, Beat]) -> float:
        """Schedulers of a worker wait for each other: what one announces counts for all. What those
        on other nodes announce is not seen from here."""
        told = [self._scheduler.of(beat) for name, beat in beats.items() if name != HTTP]
        several = self._scheduler.announced_s if NODE.search(m.name) else 0.0
        return max([several, *told])
