"""What decisions know of workers: their health, what their ranks can take, and what they carry.

One account for every host. Times are given, monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from toolkit.contract.heartbeat import Beat
from toolkit.decide.ejection import Ejection
from toolkit.decide.ledger import Ledger
from toolkit.decide.poison import Deaths
from toolkit.decide.returns import Return, Returns, Stay, first, stay
from toolkit.decide.watchdog import Health, StuckBounds, Watchdog
from toolkit.policies.base import Group, Load, WorkerView, group_of
from toolkit.policies.support.stoppable import without_best_effort


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What is known of a worker before it says anything. `parked`: prefills whose KV it may hold at
    a time, for each rank. `preempts`: best-effort work gives way there."""

    name: str
    role: str
    url: str = ""
    dp_size: int = 1
    dp_attention: bool = False
    preempts: bool = False
    parked: int = 1


_HEALTHY = Health.HEALTHY
"""Python 3.11 looks a member up slowly, and every decision asks every rank."""
RECENT_STEPS = 256
"""Decode steps over which `StepTokens` is a mean, about."""


class CountsSteps(Protocol):
    """A request whose tokens are counted by the steps of its rank."""

    def stepped(self, tokens: int) -> None: ...


class StepTokens:
    """How many tokens a decode step of a rank gives a request: 1, or more where drafts are
    accepted. A mean over about the last RECENT_STEPS steps."""

    def __init__(self) -> None:
        self.mean = 1.0
        self._begun = False
        self._part = 0.0
        """Of a token, which is not counted yet."""

    def stepped(self, steps: int, step_tokens: float) -> int:
        """So many steps gave so many tokens each; whole tokens of a request since the last call."""
        if steps <= 0:
            return 0
        step_tokens = max(1.0, step_tokens)
        weight = min(1.0, steps / RECENT_STEPS) if self._begun else 1.0
        self._begun = True
        self.mean += weight * (step_tokens - self.mean)
        given = self._part + steps * step_tokens
        self._part = given % 1.0
        return int(given)


class RankState:
    """One DP rank of a worker: what a policy chooses."""

    def __init__(self, worker: WorkerState, dp_rank: int, bounds: StuckBounds) -> None:
        self.worker = worker
        self.dp_rank = dp_rank
        self.key = (worker.name, dp_rank)
        self.credit = worker.spec.parked
        """Prefills that it may still begin before the KV of another one has left it."""
        self.held = False
        """It gets no new requests: somebody wants it empty."""
        self.completed = self.failed = 0
        self.moved_in = self.moved_out = 0
        """Requests that came from another rank in mid-stream, and those that went to one."""
        self.ledger = Ledger(complete=worker.spec.role == "decode")
        self.best_effort_requests = self.best_effort_tokens = 0
        """Best-effort requests of ours, and their prompt tokens."""
        self._made: WorkerView | None = None
        """The last view, as long as it is the same."""
        self.unstreamed: dict[int, CountsSteps] = {}
        """Requests whose tokens are counted by steps, since their answers do not stream."""
        self.step_tokens = StepTokens()
        self.bounds = bounds
        self.watchdog = Watchdog(bounds)
        self.health = Health.HEALTHY

    @property
    def name(self) -> str:
        """As people write it: `decode-0`, or `decode-0:1` where the worker has DP ranks."""
        several = self.worker.spec.dp_size > 1
        return f"{self.worker.name}:{self.dp_rank}" if several else self.worker.name

    @property
    def open(self) -> bool:
        """Whether new requests may go there."""
        return self.worker.healthy and not self.held and self.health is _HEALTHY

    @property
    def group(self) -> Group:
        return group_of(self.key, self.worker.shares_experts)

    @property
    def inflight(self) -> int:
        return self.ledger.inflight

    @property
    def inflight_tokens(self) -> int:
        return self.ledger.inflight_tokens

    @property
    def used_tokens(self) -> int | None:
        """KV tokens in use by the last reading; None without one."""
        reading = self.ledger.reading
        return None if reading is None else reading["used_tokens"]

    def quiet_s(self, now: float) -> float:
        """Since the last reading."""
        return now - self.ledger.read_at

    def load(self, now: float) -> Load | None:
        return self.ledger.load(now, self.worker.last_event)

    def view(self, now: float, usable: bool, urgent: bool = False) -> WorkerView:
        """As a policy is to see it. `urgent`: for a latency-sensitive request, for which what is
        best-effort gives way where the worker stops it."""
        worker, ledger, load, view = self.worker, self.ledger, self.load(now), self._made
        if (
            view is None
            or view.load is not load
            or view.healthy is not usable
            or view.inflight != ledger.inflight
            or view.inflight_tokens != ledger.inflight_tokens
            or view.slots != worker.slots
            or view.reserve != worker.reserve
            or view.shares_experts is not worker.shares_experts
            or view.step_tokens != self.step_tokens.mean
        ):
            view = self._made = WorkerView(
                name=worker.name,
                url=worker.spec.url,
                dp_rank=self.dp_rank,
                healthy=usable,
                inflight=ledger.inflight,
                inflight_tokens=ledger.inflight_tokens,
                load=load,
                slots=worker.slots,
                reserve=worker.reserve,
                shares_experts=worker.shares_experts,
                step_tokens=self.step_tokens.mean,
            )
        if urgent and worker.spec.preempts and self.best_effort_requests:
            decodes = worker.spec.role == "decode"
            return without_best_effort(
                view, self.best_effort_requests, self.best_effort_tokens, decodes
            )
        return view

    def stepped(self, steps: int, step_tokens: float) -> None:
        """It did so many decode steps: each answer that does not stream has their tokens more."""
        tokens = self.step_tokens.stepped(steps, step_tokens)
        for request in self.unstreamed.values():
            request.stepped(tokens)

    def beat(self, beat: Beat, now: float) -> bool:
        """Take its scheduler's heartbeat; whether its health has changed. A request of ours is
        work, wherever in the worker it is: a scheduler that stands still does not take it in."""
        # Ranks that share their experts wait for one that compiles, say.
        allowed_s = max(rank.watchdog.own_bound_s for rank in self.worker.ranks)
        before = self.health
        self.health = self.watchdog.read(beat, bool(self.ledger.inflight), now, allowed_s)
        return self.health is not before

    def begin_anew(self) -> None:
        """Another process computes there now."""
        self.step_tokens = StepTokens()
        self.ledger.renew()
        self.watchdog = Watchdog(self.bounds)
        self.health = Health.HEALTHY


class WorkerState:
    """One server as decisions see it."""

    ranks: Sequence[RankState]

    def __init__(self, spec: WorkerSpec, bounds: StuckBounds) -> None:
        self.spec = spec
        self.name = spec.name
        self.ranks = [RankState(self, rank, bounds) for rank in range(spec.dp_size)]
        self.healthy = False
        self.down_since = 0.0
        self.last_event = 0.0
        """Its last sign of life."""
        self.slots = 0
        """Requests that one rank runs at a time at most; 0 for a plain SGLang, which does not
        say."""
        self.reserve = 0
        """KV tokens that a rank keeps free for each of them."""
        self.shares_experts = spec.dp_attention
        """Whether its ranks do (DP attention)."""
        self.tells_prefills = True
        """Whether it says when a prefill is done; a plain SGLang does not."""
        self.prefill_only = False
        """Whether it can answer a request of one token without a decode worker."""
        self.routers = 1
        """That send requests there, this one among them."""
        self.record = Ejection()
        self.crashed_at = 0.0
        """When it last said that one of its processes had died."""
        self.gone_at = 0.0
        """When it last went away, or hung, without a word."""
        self.stuck_since: float | None = None
        """Since when a rank of it has been stuck: it gets nothing until its ranks go on, or another
        process answers there."""
        self.stood_from = 0.0
        """When the rank that got stuck last was last seen to go on."""
        self.times_stuck = 0

    def greeted(
        self,
        slots: int,
        reserve: int,
        dp_attention: bool | None,
        prefill_only: bool,
    ) -> None:
        """It says what it is; it may have changed with a restart."""
        self.slots, self.reserve, self.prefill_only = slots, reserve, prefill_only
        self.shares_experts = self.spec.dp_attention if dp_attention is None else dp_attention
        self.down_since = 0.0
        self.stuck_since = None
        for rank in self.ranks:
            rank.begin_anew()

    def replaced(self) -> None:
        """Another process than before is about to say what it is."""
        self.record.reset()
        for rank in self.ranks:
            rank.ledger.replaced()

    def shared(self, routers: int) -> int:
        """So many send requests there: each rank has its part of the credits for this router. How
        many there are more than before, in all. Where there are fewer, credits may be below zero
        until as many have come back: what is parked stays."""
        before, self.routers = self.share, max(1, routers)
        more = self.share - before
        for rank in self.ranks:
            rank.credit += more
        return max(0, more) * len(self.ranks)

    @property
    def share(self) -> int:
        """Prefills that this router may have parked on one of its ranks; at least one, or it would
        serve nothing."""
        return max(1, self.spec.parked // self.routers)

    def up(self) -> bool:
        """It takes requests, unless a rank of it is stuck; whether that is new."""
        if self.healthy or self.stuck_since is not None:
            return False
        self.healthy = True
        if self.tells_prefills:  # one that does not is asked for its load again and again
            for rank in self.ranks:
                rank.ledger.recall()
        return True

    def held_up(self, now: float) -> bool:
        """No new requests: its HTTP loop does not come round, its ranks may well compute. Nothing
        is missed, so nothing is given up."""
        if not self.healthy:
            return False
        self.healthy, self.down_since = False, now
        return True

    def down(self, now: float) -> bool:
        """No new requests, and what it said of its load does not count any more."""
        if not self.held_up(now):
            return False
        for rank in self.ranks:
            rank.ledger.forget()
        return True

    def died(self, crashed: bool, now: float) -> bool:
        """Its processes are gone, or may as well be. `crashed`: it said so itself. Whether it died
        without a word. One that was stuck has gone already: its end is no second death."""
        if self.stuck_since is not None:
            return False
        if crashed:
            self.crashed_at = now
        else:
            self.gone_at = now
        return not crashed

    def died_since(self, at: float) -> bool:
        return max(self.crashed_at, self.gone_at) >= at


class KnownRanks:
    """All workers by their roles, who of them is there, and when the others are expected back."""

    def __init__(self, workers: Iterable[WorkerState], now: float = 0.0) -> None:
        self.workers = {worker.name: worker for worker in workers}
        self._of: dict[str, list[RankState]] = {}
        self._records: dict[str, list[Ejection]] = {}
        for worker in self.workers.values():
            self._of.setdefault(worker.spec.role, []).extend(worker.ranks)
            self._records.setdefault(worker.spec.role, []).append(worker.record)
        self.since = now
        """From when on what happens to them is seen."""
        self.deaths = Deaths()
        self.returns = Returns()
        self._gone_at: dict[str, float] = {}
        """By role: when its last healthy worker went; absent while there is one."""
        self.changed(now)

    @property
    def splits(self) -> bool:
        """Whether some workers only decode."""
        return "decode" in self._of

    @property
    def roles(self) -> Iterable[str]:
        return self._of

    def of(self, role: str) -> list[RankState]:
        """The ranks of a role, in a fixed order. KeyError: no worker has it."""
        return self._of[role]

    def rank(self, key: tuple[str, int]) -> RankState:
        """KeyError, IndexError: there is none of that name."""
        return self.workers[key[0]].ranks[key[1]]

    def any_open(self, role: str) -> bool:
        """Whether some rank of the role takes new requests."""
        return any(rank.open for rank in self._of[role])

    def any_out(self, role: str) -> bool:
        """Whether some worker of the role is ejected or resting, or on probation."""
        return True in [record.out for record in self._records[role]]

    def changed(self, now: float) -> None:
        """The health of some worker has changed."""
        for role in self._of:
            if self.any_open(role):
                self._gone_at.pop(role, None)
            else:
                self._gone_at.setdefault(role, now)
        for worker in self.workers.values():
            note = self.returns.came if worker.healthy else self.returns.went
            note(worker.name, now)

    def gone_at(self, role: str) -> float | None:
        """When the role's last healthy worker went; None while there is one."""
        return self._gone_at.get(role)

    def back(self, role: str, now: float) -> Return | None:
        """When some worker of a role that nobody serves is expected to serve it; None: nobody
        knows. A rank that makes no step for the moment is about to go on, or to be started anew."""
        found: list[Return | None] = []
        for worker in self.workers.values():
            if worker.spec.role != role:
                continue
            found.append(self.returns.of(worker.name))
            for rank in worker.ranks:
                if worker.healthy and rank.health is Health.SUSPECT:
                    found.append(Return(now + 1.0, rank.watchdog.bound_s))
        return first(found)

    def stay(self, role: str, entered: float, least_s: float, deadline: float, now: float) -> Stay:
        """How long a request that came at `entered` waits for the role, which nobody serves."""
        since = max(self._gone_at.get(role, entered), entered)
        return stay(since, least_s, deadline, self.back(role, now), now)
