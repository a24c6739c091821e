"""Is a starting process ready? Asked beside the loop, again and again."""

import time
from collections.abc import Callable, Iterable

from toolkit.launch import identity
from toolkit.launch.background import Background
from toolkit.launch.process import Managed, Status
from toolkit.launch.progress import stage_of

EVERY = 0.5
TIMEOUT = 10.0
FADE = 0.7
"""What a slow start leaves behind of itself with the next one: starts differ by what else runs."""
REFUSED = 60
"""Probes in a row, half a minute of them, that a process may answer with a refusal: it is up by
then, and will say nothing else."""


class Probes:
    """Asks what is starting, and marks as ready what answers. Used by one thread."""

    def __init__(self, run_id: str, background: Background, changed: Callable[[str], None]) -> None:
        self._run_id = run_id
        self._background = background
        self._changed = changed
        self._next = 0.0
        self._served: set[str] = set()
        """Processes that have been ready once."""
        self._strangers: dict[str, str] = {}
        """Who was found at their ports; said once."""
        self._refused: dict[str, int] = {}
        """Probes in a row that a process has refused."""

    def timer(self, processes: Iterable[Managed]) -> float | None:
        """When (monotonic s) to call `tick`; None: nothing is starting."""
        return self._next if any(m.status is Status.STARTING for m in processes) else None

    def tick(self, processes: Iterable[Managed], now: float) -> None:
        """Probe what is starting, when that is due."""
        if now < self._next:
            return
        self._next = now + EVERY
        for m in processes:
            if m.status is Status.STARTING:
                self._probe(m)

    def _probe(self, m: Managed) -> None:
        m.note = stage_of(m.log)
        if m.probing:
            return
        m.probing = True
        life = m.popen

        def answer(result: object) -> None:
            m.probing = False
            if m.popen is not life or m.status is not Status.STARTING:
                return
            if isinstance(result, ValueError):  # no URL: nobody will ever answer there
                self._hopeless(m, f"cannot be asked whether it is ready: {result}")
            elif not isinstance(result, identity.Probe):
                m.probed = f"cannot be probed now: {result!r}"
            elif result.stranger:
                self._not_ours(m, result.stranger)
            elif result.status != 200:
                self._not_yet(m, result)
            else:
                m.status, m.note = Status.READY, ""
                m.ready_after = time.monotonic() - m.started
                m.usual_start_s = max(m.ready_after, FADE * (m.usual_start_s or 0.0))
                m.probed = ""
                self._refused.pop(m.name, None)
                self._served.add(m.name)
                self._changed(f"{m.name}: ready after {m.ready_after:.1f} s")

        leaders = m.leaders
        self._background.ask(
            lambda: identity.probe(m.health_url, TIMEOUT, self._run_id, leaders), answer
        )

    def _not_yet(self, m: Managed, found: identity.Probe) -> None:
        m.probed = found.why
        if not found.refuses:
            self._refused.pop(m.name, None)
            return
        count = self._refused[m.name] = self._refused.get(m.name, 0) + 1
        if count >= REFUSED:
            self._refused.pop(m.name)
            self._hopeless(m, f"will not get ready: {found.why}")

    def _not_ours(self, m: Managed, who: str) -> None:
        """Somebody else answers at its port, so it will not get it."""
        self._hopeless(m, who)

    def _hopeless(self, m: Managed, who: str) -> None:
        """It will not get ready, and why. At the start that is the end; later it goes the way of a
        process that does not get up, while the others go on."""
        if m.name not in self._served:
            m.status, m.note = Status.FAILED, who
            self._changed(f"{m.name}: {who}")
        elif self._strangers.get(m.name) != who:
            self._strangers[m.name] = who
            self._changed(f"{m.name}: not ready: {who}")
