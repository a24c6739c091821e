"""Simulated workers as the decider knows them: its own records, whose loads are those of simulated
ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolkit.decide.ledger import Ledger
from toolkit.decide.ranks import RankState, WorkerSpec, WorkerState
from toolkit.decide.watchdog import StuckBounds
from toolkit.policies.base import Load, WorkerView

if TYPE_CHECKING:
    from toolkit.simulate.movable import Movable
    from toolkit.simulate.prefill import PrefillWorker
    from toolkit.simulate.rank import SimulatedRank
    from toolkit.simulate.request import Request

NEVER_STUCK = StuckBounds(stuck_s=0.0, announced_s=0.0)


class SimulatedServer(WorkerState):
    """A server of ranks that decode. `stops`: it prefills, too, and stops best-effort prompts."""

    ranks: Sequence[SimulatedRankState]

    def __init__(self, name: str, groups: Sequence[Movable], role: str, stops: bool) -> None:
        """`groups`: of its ranks, in their order."""
        ranks = [(rank, group) for group in groups for rank in group.ranks]
        shares = any(rank.shares_experts for rank, _ in ranks)
        spec = WorkerSpec(name, role, dp_size=len(ranks), dp_attention=shares, preempts=stops)
        super().__init__(spec, NEVER_STUCK)
        self.ranks = [SimulatedRankState(self, rank, group) for rank, group in ranks]


@dataclass(slots=True)
class NotBegun:
    """Requests that are on their way to a rank, or wait there, and their KV tokens; of all routers
    that send any there."""

    requests: int = 0
    tokens: int = 0


class WaitingLedger(Ledger):
    """What is bound to a rank and has not begun there: nothing else of a simulated rank has to be
    found out."""

    def __init__(self) -> None:
        super().__init__(complete=False)
        self.there = NotBegun()
        self.sent: list[int] | None = None
        """KV tokens of what was sent since a load was published; None: none was."""

    def begin(self, tokens: int, now: float) -> int:
        self.there.requests += 1
        self.there.tokens += tokens
        if self.sent is not None:
            self.sent.append(tokens)
        return super().begin(tokens, now)

    def cancel(self, lease: int, tokens: int) -> None:
        self.began(tokens)
        super().cancel(lease, tokens)

    def began(self, tokens: int) -> None:
        """One of so many KV tokens goes on there, or does not come."""
        self.there.requests -= 1
        self.there.tokens -= tokens


class SimulatedRankState(RankState):
    """A rank of these. Its load is as it is now, or as it was `published` last."""

    ledger: WaitingLedger

    def __init__(self, worker: SimulatedServer, rank: SimulatedRank, loop: Movable) -> None:
        super().__init__(worker, rank.dp_rank, NEVER_STUCK)
        self.rank, self.loop = rank, loop
        self.ledger = WaitingLedger()
        self.unbegun: dict[Request, None] = {}
        """Requests that were sent here and have said nothing yet."""
        self._published: Load | None = None
        self._live = Load(0, 0, 0, rank.capacity, 0)
        """The last one that was made: it is the same one as long as nothing changes."""

    def begin_anew(self) -> None:
        super().begin_anew()
        self.step_tokens.mean = self.loop.pace

    def live(self) -> Load:
        """As it is now."""
        rank, loop, there = self.rank, self.loop, self.ledger.there
        computing = loop.computing(rank.place)
        running, waiting = len(rank.running), there.requests
        used = loop.kv_now()[rank.place] + computing
        coming = there.tokens - computing
        if coming < 0:
            coming = 0
        last = self._live
        if (
            used != last.used_tokens
            or running != last.running
            or waiting != last.waiting
            or coming != last.waiting_tokens
        ):
            last = self._live = Load(running, waiting, used, rank.capacity, coming)
        return last

    def publish(self) -> None:
        """From now on what is known is this, and what is sent from now on."""
        self._published = self.live()
        self.ledger.sent = []

    def load(self, now: float) -> Load:
        published, sent = self._published, self.ledger.sent
        if published is None or sent is None:
            return self.live()
        return replace(published, sent_requests=len(sent), sent_tokens=sum(sent))

    def quiet_s(self, now: float) -> float:
        return 0.0

    def began(self, request: Request) -> None:
        """It said its first token."""
        self.ledger.began(request.prompt)
        del self.unbegun[request]


class PrefillServer(WorkerState):
    """A prefill worker, which may hold the KV of so many `parked` prompts at a time."""

    ranks: Sequence[PrefillRankState]

    def __init__(self, prefill: PrefillWorker, parked: int) -> None:
        spec = WorkerSpec(prefill.name, "prefill", parked=parked)
        super().__init__(spec, NEVER_STUCK)
        self.ranks = [PrefillRankState(self, prefill)]


class PrefillRankState(RankState):
    """Its rank: the load is what waits and runs there, now."""

    def __init__(self, worker: PrefillServer, prefill: PrefillWorker) -> None:
        super().__init__(worker, 0, NEVER_STUCK)
        self.prefill = prefill

    def view(self, now: float, usable: bool, urgent: bool = False) -> WorkerView:
        return self.prefill.view(usable, urgent)
