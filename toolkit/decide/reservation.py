"""A request on a rank: counted in the rank's load, and its length followed, from first to last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.decide.ranks import RankState
from toolkit.policies.base import RequestView

if TYPE_CHECKING:
    from toolkit.policies.following import Following


class Reservation:
    """From the moment that a request is bound to a rank until it is gone from there.

    `following`, where the policy needs one, is told when it goes, of tokens as they come, and how
    it ended. An answer that does not stream is counted by the steps that the rank says it did
    (`stepped`; nothing where it does not), and set right by its usage at the end. `generated`:
    tokens that it had before, as part of the prompt.
    """

    __slots__ = ("_best_effort", "_following", "_lease", "_streams", "begun", "counted",
                 "key", "over", "probe", "proven", "rank", "tokens")  # fmt: skip

    def __init__(
        self,
        rank: RankState,
        view: RequestView,
        now: float,
        following: Following | None = None,
        streams: bool = False,
        generated: int = 0,
    ) -> None:
        self.rank = rank
        self.tokens = view.prompt_tokens
        self.begun = now
        self.over = False
        self.probe = False
        """Whether it is to show that its worker is well again."""
        self.proven = False
        """The worker has computed something of it."""
        self.counted = 0
        """Tokens that have come of it here, as far as anybody wanted to know."""
        self._streams = streams
        self._lease = rank.ledger.begin(self.tokens, now)
        self._best_effort = view.best_effort
        self._weigh(1)
        self._following = following
        self.key = ""
        """Its name for who follows; empty where nobody does."""
        if following is None:
            return
        # Not the rid: a client may use one twice at a time.
        self.key = f"{rank.worker.name}/{rank.dp_rank}/{self._lease}"
        following.sent(self.key, rank.key, rank.group, view, generated)
        if following.lengths and not streams:
            rank.unstreamed[self._lease] = self

    @property
    def lengths(self) -> bool:
        """Whether the policy wants to know how many tokens come."""
        return self._following is not None and self._following.lengths

    @property
    def counts(self) -> bool:
        """Whether somebody wants to know of tokens as they come of its stream."""
        return self._streams and self.lengths

    @property
    def followed(self) -> bool:
        """Whether `end` wants to know of the tokens of an answer that did not stream."""
        return self.lengths and not self._streams

    def count(self, tokens: int) -> None:
        """That many have come, or as many fewer than was thought."""
        self.counted += tokens
        if self._following is not None:
            self._following.counted(self.key, tokens)

    def stepped(self, tokens: int) -> None:
        """The rank's decode steps gave it so many."""
        self.count(tokens)

    def end(self, ok: bool | None, now: float, generated: int = 0, finished: bool = False) -> None:
        """It is gone. `ok`: None when it went on elsewhere. `generated` here, 0 where that is not
        known; `finished` by itself or by its limit, not aborted or lost."""
        rank = self.rank
        self._gone()
        rank.ledger.end(self._lease, self.tokens, now, generated)
        if ok is None:
            rank.moved_out += 1
        elif ok:
            rank.completed += 1
        else:
            rank.failed += 1
        if self._following is None:
            return
        if self.followed and generated:
            self.count(generated - self.counted)
        self._following.ended(self.key, finished and generated > 0)

    def cancel(self) -> None:
        """It was not sent after all, or nothing is known of how it ended."""
        self._gone()
        if self.probe:
            self.rank.worker.record.unknown()
        self.rank.ledger.cancel(self._lease, self.tokens)
        if self._following is not None:
            self._following.ended(self.key, finished=False)

    def _gone(self) -> None:
        assert not self.over, "a reservation ends once"
        self.over = True
        self._weigh(-1)
        self.rank.unstreamed.pop(self._lease, None)

    def _weigh(self, sign: int) -> None:
        if self._best_effort:
            self.rank.best_effort_requests += sign
            self.rank.best_effort_tokens += sign * self.tokens
