"""Which ranks a request may go to, and which of them its policy takes."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from toolkit.decide.ejection import usable as ejected_left_out
from toolkit.decide.pairs import NONE, Pairs
from toolkit.decide.poison import Probation
from toolkit.decide.reservation import Reservation
from toolkit.policies.support.stoppable import all_full

if TYPE_CHECKING:
    from toolkit.decide.ranks import KnownRanks, RankState
    from toolkit.decide.requests import RequestState
    from toolkit.policies.base import Policy, RequestView
    from toolkit.policies.following import Following
    from toolkit.policies.stages.narrowing import StageFilter


class PolicyFailed(Exception):
    """A policy raised (`cause`; its own text may hold anything), or chose what it may not."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self.cause = cause


class Chooser:
    """Asks policies. `eject_share`: of the healthy ranks that may be left alone at a time;
    `kept_back`: credits of a prefill rank that best-effort requests leave for others."""

    def __init__(
        self, ranks: KnownRanks, eject_share: float, kept_back: int, stages: StageFilter | None
    ) -> None:
        self.ranks = ranks
        self.probation = Probation()
        self.pairs = Pairs()
        self.policies: dict[str, Policy] = {}
        """By side, prefill and decode."""
        self.following: Following | None = None
        """Whom the decode policy has told of what is in flight; None where it needs nobody."""
        self.stages = stages
        """Which decode ranks are for which lengths; None where all are for all."""
        self._eject_share = eject_share
        self._kept_back = kept_back

    def use(self, side: str, policy: Policy, following: Following | None = None) -> None:
        """From now on. `following`: who is told for it of what is in flight, if not its own."""
        self.policies[side] = policy
        if side == "decode":
            follows = policy.needs.following or policy.on_record
            if following is None and follows:
                following = policy.follow()
            self.following = following

    def policy(self, role: str) -> Policy:
        # A plain worker does both; the decode policy balances it.
        return self.policies["decode" if role == "plain" else role]

    def usable(
        self, role: str, request: RequestState, now: float, credit: bool = False, left: int = 0
    ) -> list[bool]:
        """Which ranks of the role this request may go to now, in their order.

        Those that are up, without the ejected ones, those without more than `left` credits (where
        a router's share is no larger, one credit is enough), and, as long as there are others,
        those between which and its other worker no KV gets across, and those that it failed on; for
        a suspect, those that begin no other one. But it waits for such a one rather than going back
        to a worker that itself failed it: one that answers 500 to everything would put it in
        quarantine.
        """
        ranks = self.ranks.of(role)
        usable = [rank.open for rank in ranks]
        if self.ranks.any_out(role):
            records = [rank.worker.record for rank in ranks]
            usable = ejected_left_out(usable, records, now, self._eject_share)
        if self.pairs.known and role != "plain":
            usable = self._paired(usable, role, request, now)
        suspect = request.record.suspect
        if suspect:
            usable = _others(usable, ranks, request.record.failed_by)
        if credit and left:
            usable = [
                ok and rank.credit > min(left, rank.worker.share - 1)
                for ok, rank in zip(usable, ranks, strict=True)
            ]
        elif credit:  # of hundreds of ranks nobody's share is asked for
            usable = [ok and rank.credit > 0 for ok, rank in zip(usable, ranks, strict=True)]
        if suspect:
            usable = [
                ok and self.probation.free(rank.worker.name)
                for ok, rank in zip(usable, ranks, strict=True)
            ]
        return _others(usable, ranks, request.avoid) if request.avoid else usable

    def _paired(
        self, usable: list[bool], role: str, request: RequestState, now: float
    ) -> list[bool]:
        """Without decode workers to which no KV of the request's prefill worker gets now, or
        prefill workers whose KV gets to no decode worker that is there. If all are such ones, all
        of them are tried."""
        ranks = self.ranks.of(role)
        if role == "decode":
            prefill = request.prefill_rank
            closed = NONE if prefill is None else self.pairs.closed(prefill.worker.name, now)
            return _others(usable, ranks, closed) if closed else usable
        narrow = {rank.worker.name for rank in ranks if self.pairs.narrows(rank.worker.name)}
        if not narrow:
            return usable
        there = {rank.worker.name for rank in self.ranks.of("decode") if rank.open}
        alone = {name for name in narrow if there <= self.pairs.closed(name, now)}
        return _others(usable, ranks, alone) if alone else usable

    def pair(self, request: RequestState, decode: RankState, now: float) -> None:
        """The KV of the request, if it has been prefilled elsewhere, goes to that rank."""
        prefill = request.prefill_rank
        if prefill is None or request.pair is not None:
            return
        request.pair = prefill.worker.name, decode.worker.name
        if self.pairs.known:
            self.pairs.sent(request.pair, request, now)

    def choose(
        self, role: str, request: RequestState, now: float, credit: bool = False
    ) -> RankState | None:
        """The policy's choice now; takes the credit, and a suspect's probation. None when nothing
        is usable.

        Raises:
            PolicyFailed: the policy raised, chose a rank that is not usable, or none.
        """
        ranks, view = self.ranks.of(role), request.view
        left = self._kept_back if view.best_effort else 0
        usable = self.usable(role, request, now, credit, left)
        if not any(usable):
            return None
        stages = self.stages if role != "prefill" else None
        if stages is not None:
            usable = stages.narrow(view.prompt_tokens, usable)
        stops = view.urgent and role != "decode"
        views = [rank.view(now, ok, stops) for rank, ok in zip(ranks, usable, strict=True)]
        if view.urgent and not stops and all_full(views):
            views = [rank.view(now, ok, True) for rank, ok in zip(ranks, usable, strict=True)]
        policy = self.policy(role)
        try:
            decision = policy.choose(views, view)
        except Exception as error:
            raise PolicyFailed(f"policy {policy.name} failed", error) from error
        if decision is None or not usable[decision.index]:
            raise PolicyFailed(f"policy {policy.name} chose no usable {role} worker")
        rank = ranks[decision.index]
        if stages is not None:
            stages.note(view.prompt_tokens, decision.index)
        if request.record.suspect:
            self.probation.take(rank.worker.name, request)
        if credit:
            rank.credit -= 1
        return rank

    def reserve(
        self,
        rank: RankState,
        view: RequestView,
        now: float,
        *,
        generates: bool = True,
        streams: bool = False,
        generated: int = 0,
    ) -> Reservation:
        """The request's place on a rank. `generates`: the rank computes output tokens, `generated`
        of which the request has already."""
        following = self.following if generates else None
        reservation = Reservation(rank, view, now, following, streams, generated)
        reservation.probe = rank.worker.record.posted(now)
        return reservation


def _others(usable: list[bool], ranks: Sequence[RankState], failed: AbstractSet[str]) -> list[bool]:
    """Without those that it failed on. They are the last resort, not forbidden: a worker may be
    back."""
    fresh = [ok and rank.worker.name not in failed for ok, rank in zip(usable, ranks, strict=True)]
    return fresh if any(fresh) else usable
