"""A request on a rank: counted in the rank's load, and its length followed, from first to last."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from toolkit.policies.base import RequestView

if TYPE_CHECKING:
    from toolkit.policies.following import Following
    from toolkit.router.rank import Rank


class Reservation:
    """From the moment that a request is bound to a rank until it is gone from there.

    `following`, where the policy needs one, is told when it goes, of tokens as they come (`count`),
    and how it ended. An answer that does not stream is counted by the steps that the rank says it
    did (`stepped`; nothing where it does not), and set right by its usage at the end. `generated`:
    tokens that it had before, as part of the prompt.
    """

    __slots__ = (
        "_best_effort",
        "_counted",
        "_following",
        "_key",
        "_lease",
        "count",
        "rank",
        "tokens",
    )

    def __init__(
        self,
        rank: Rank,
        view: RequestView,
        following: Following | None = None,
        streams: bool = False,
        generated: int = 0,
    ) -> None:
        self.rank = rank
        self.tokens = view.prompt_tokens
        self.count: Callable[[int], None] | None = None
        """To be called with the number of tokens that came; None where nobody wants to know."""
        self._lease = rank.begin(self.tokens, monotonic())
        self._best_effort = view.best_effort
        if self._best_effort:
            rank.best_effort.add(1, self.tokens)
        self._counted = 0
        self._following = following
        if following is None:
            return
        # Not the rid: a client may use one twice at a time.
        self._key = f"{rank.worker.name}/{rank.dp_rank}/{self._lease}"
        following.sent(self._key, rank.key, rank.group, view, generated)
        if streams:
            self.count = following.counter(self._key)
        elif following.lengths:
            rank.unstreamed[self._lease] = self

    @property
    def followed(self) -> bool:
        """Whether `end` wants to know of the tokens of an answer that did not stream."""
        return self._following is not None and self._following.lengths and self.count is None

    def stepped(self, steps: int) -> None:
        """The rank did so many decode steps."""
        assert self._following is not None
        self._counted += steps
        self._following.counted(self._key, steps)

    def end(self, ok: bool | None, generated: int = 0, finished: bool = False) -> None:
        """It is gone. `ok`: None when it went on elsewhere. `generated` here, 0 where that is not
        known; `finished` by itself or by its limit, not aborted or lost."""
        self._gone()
        self.rank.end(self._lease, self.tokens, ok, generated)
        if self._following is None:
            return
        if self.followed:
            self.rank.unstreamed.pop(self._lease, None)
            if generated:
                self._following.counted(self._key, generated - self._counted)
        self._following.ended(self._key, finished and generated > 0)

    def cancel(self) -> None:
        """It was not sent after all."""
        self._gone()
        self.rank.cancel(self._lease, self.tokens)
        if self._following is not None:
            self.rank.unstreamed.pop(self._lease, None)
            self._following.ended(self._key, finished=False)

    def _gone(self) -> None:
        if self._best_effort:
            self.rank.best_effort.add(-1, -self.tokens)
