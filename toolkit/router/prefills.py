"""Prefills that requests wait for. When a worker says that one is done, the decider is told what
the prefill found out: the prompt's tokens, and the experts that it activated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from toolkit.decide.messages import Prefilled, Proven
from toolkit.router.prefill_facts import PrefillFacts

if TYPE_CHECKING:
    import numpy as np

    from toolkit.contract.events import PrefillDone
    from toolkit.decide.reservation import Reservation
    from toolkit.router.decider_channel import TellsDecider
    from toolkit.router.eldr.locality import Locality
    from toolkit.router.metrics import Metrics
    from toolkit.router.switches import Switches
    from toolkit.router.worker import Worker
    from toolkit.router.worker_listener import WorkerListener
    from toolkit.signatures.reader import SignatureSample


class PrefillWait(Protocol):
    """An attempt's wait for its prefill."""

    def decoding(self) -> None:
        """Its decode call is on its way."""
        ...

    def over(self) -> None:
        """The attempt is over, whatever its prefill does."""
        ...


class PrefillWaits(Protocol):
    """Where attempts wait for their prefills."""

    def wait(
        self,
        worker: Worker,
        rid: str,
        number: int,
        reservation: Reservation,
        facts: PrefillFacts,
        sampled: bool,
    ) -> PrefillWait:
        """Tell the decider when `worker` says that `rid` is done, and write down what it says.
        `number`: of the request, `sampled`: whether its experts count for the drift of traffic."""
        ...


class FinishedPrefills:
    """Tells the decider of prefills as workers' events come."""

    def __init__(
        self,
        channel: TellsDecider,
        metrics: Metrics,
        locality: Locality | None,
        switches: Switches,
        listeners: Sequence[WorkerListener],
    ) -> None:
        self.channel = channel
        self.listeners = listeners
        self.metrics = metrics
        self.locality = locality
        self.switches = switches

    def wait(
        self,
        worker: Worker,
        rid: str,
        number: int,
        reservation: Reservation,
        facts: PrefillFacts,
        sampled: bool,
    ) -> PrefillWait:
        """See `PrefillWaits`."""
        waits = worker.prefills[rid] = _Wait(self, worker, rid, number, reservation, facts, sampled)
        return waits


@dataclass(slots=True, eq=False)
class _Wait:
    """One attempt's."""

    _all: FinishedPrefills
    _worker: Worker
    _rid: str
    _number: int
    _reservation: Reservation
    _facts: PrefillFacts
    _sampled: bool
    _sample: SignatureSample | None = None

    def prefilled(self, event: PrefillDone) -> None:
        """The prefill worker says that it is done, or nearly: its decode worker is chosen by what
        it knows by then."""
        every, facts = self._all, self._facts
        if event.left and not every.switches.early_choice:
            return
        now = monotonic()
        if not event.left:
            facts.done_at = now
        if not self._reservation.proven:
            every.channel.send(Proven(self._number, self._reservation, decode=False))
        if facts.told_at:
            for listener in every.listeners:
                listener.prefill_over(self._number, now)
            return
        facts.told_at = now
        if event.left:
            every.metrics.chosen_early.inc()
        facts.counted, locality = True, every.locality
        signature: np.ndarray | str | None = None
        if locality is not None and locality.active:
            read = locality.read(self._worker.name, event)
            if isinstance(read, str):
                signature = read
            else:
                self._sample, signature = read, read.vector
        facts.view = replace(
            facts.view,
            prompt_tokens=event.prompt_tokens or facts.view.prompt_tokens,
            cached_tokens=event.cached_tokens,
            signature=signature,
        )
        every.channel.send(Prefilled(self._number, facts.view))

    def decoding(self) -> None:
        """Its decode call is on its way."""
        locality, sample = self._all.locality, self._sample
        if locality is not None and sample is not None and self._sampled:
            locality.observe(sample)

    def over(self) -> None:
        """The attempt is over, whatever its prefill does."""
        self._worker.prefills.pop(self._rid, None)
