"""What the requests in flight hold now, and are predicted to hold in the next steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from toolkit.policies.predictors.base import Flight, PlacedPrediction, Predictor
from toolkit.policies.predictors.errors import HORIZON
from toolkit.policies.support.readings import kv_tokens
from toolkit.policies.views import RequestView

if TYPE_CHECKING:
    import numpy as np

Key = tuple[str, int]
FIRST = 64
RECENT = 256
"""The mean answer is over about so many of the last ones."""
SLIVER = 1e-6
"""Steps: far above the error of an outlook, far below what one could mean."""
GOLDEN = 0.6180339887498949
JUDGED = 4
"""Of so many requests that end one is held against its prediction."""


class InflightLengths:
    """Requests that run on decode ranks: where, how old, and what a predictor thinks of them.

    State of BR-H; whoever sends the requests keeps it: `sent`, `counted` for tokens seen on the
    stream, `ended`. All three cost O(1); a look costs O(requests + ranks * H), in a dozen numpy
    calls. It holds what is in flight and nothing else: rows are as many as there ever were at a
    time. An unknown `rid` is ignored: its request was given up, and late tokens are no error.

    Formula, per request i of age a_i (tokens generated), with s_i KV tokens now:

        c_i     = (1 - p_fin) * H + p_fin * mu_rem         steps that it will stay
        P_{g,h} = sum over i on g that stay longer than h of (s_i + h),  h = 0..H

    p_fin is the probability that it ends within H steps, mu_rem the steps that it then has left
    (`Predictor`). *Ours*: c is rounded, every request is there at h = 0, and one whose c rounds to
    H stays to the end. Where drafts are accepted a step gives a request of rank g a_g tokens: it
    stays for c_i / a_g steps, c_i in tokens, and adds h * a_g. Source: BalanceRoute (arXiv
    2605.06113), 5.1: load projections are rectified by the tokens that are counted on the streams.
    """

    def __init__(self, predictor: Predictor) -> None:
        import numpy as np

        self.predictor = predictor
        self._slots: dict[str, int] = {}
        self._who: list[tuple[str, Key, PlacedPrediction]] = []
        self._ranks: dict[Key, int] = {}
        self._counts: list[int] = []
        self._spare: list[int] = []
        self._rank = np.zeros(FIRST, dtype=np.int64)
        self._prompt = np.zeros(FIRST, dtype=np.float64)
        self._flight = Flight.empty(FIRST)
        self._ended = 0
        self._answer = 0.0

    def __len__(self) -> int:
        return len(self._who)

    def count(self, key: Key) -> int:
        """Requests on the rank."""
        return self._counts[self._ranks[key]] if key in self._ranks else 0

    def tokens(self, key: Key) -> float:
        """KV tokens that the requests on the rank hold now."""
        return float(self.projections([key], 0)[0, 0])

    def turnover(self, ranks: int) -> float:
        """Requests that end per rank and token that each gets, on average: those on a rank divided
        by the tokens of a mean answer. 0 before any has ended. A step is such a token, or several
        where drafts are accepted."""
        return len(self._who) / (ranks * self._answer) if ranks and self._answer else 0.0

    def sent(self, rid: str, key: Key, request: RequestView, generated: int = 0) -> None:
        """The request goes to the rank. `generated`: tokens that it had before, as part of the
        prompt (it was resumed there). Sent twice, it is where it was sent last."""
        self.ended(rid, finished=False)
        slot = len(self._who)
        if slot == len(self._rank):
            self._grow()
        placed = self.predictor.place(request)
        self._slots[rid] = slot
        self._who.append((rid, key, placed))
        self._rank[slot] = self._enter(key)
        self._prompt[slot] = kv_tokens(request) - generated
        self._flight.set(slot, request, placed, generated)

    def counted(self, rid: str, tokens: int = 1) -> None:
        """That many more tokens came on its stream."""
        slot = self._slots.get(rid)
        if slot is not None:
            self._flight.age[slot] += tokens

    def stepped(self, key: Key, tokens: int) -> None:
        """All that runs on the rank made that many more tokens: `counted` of each."""
        place = self._ranks.get(key)
        if place is not None:
            count = len(self._who)
            self._flight.age[:count] += (self._rank[:count] == place) * tokens

    def all_stepped(self, steps: Mapping[Key, int]) -> None:
        """`stepped` of several ranks at once."""
        import numpy as np

        made = np.zeros(len(self._counts), dtype=np.int64)
        for key, tokens in steps.items():
            place = self._ranks.get(key)
            if place is not None:
                made[place] = tokens
        count = len(self._who)
        self._flight.age[:count] += made[self._rank[:count]]

    def ended(self, rid: str, finished: bool = True) -> None:
        """It is gone. `finished`: by itself or by its limit; else it was aborted or lost, and says
        of its length only that it would have been more."""
        slot = self._slots.pop(rid, None)
        if slot is None:
            return
        self._ended += finished
        if finished and self._ended % JUDGED == 0:
            self._judge(slot)
        _, key, placed = self._who[slot]
        age = int(self._flight.age[slot])
        if finished:
            self._answer += (max(age, 1) - self._answer) / min(self._ended, RECENT)
        by_itself = finished and age < int(self._flight.limit[slot])
        self.predictor.ended(placed, age, by_itself)
        self._leave(key)
        moved = self._who.pop()
        if slot == len(self._who):
            return
        self._who[slot] = moved
        self._slots[moved[0]] = slot
        for column in (self._rank, self._prompt, *self._flight.columns()):
            column[slot] = column[len(self._who)]

    def lost(self, key: Key) -> list[str]:
        """The rank is gone, and all that ran on it; the rids of those."""
        gone = [rid for rid, rank, _ in self._who if rank == key]
        for rid in gone:
            self.ended(rid, finished=False)
        return gone

    def projections(
        self, keys: Sequence[Key], horizon: int, paces: Sequence[float] = ()
    ) -> np.ndarray:
        """P_{g,h}, KV tokens [ranks, horizon + 1], for these ranks in this order. `paces`: a_g of
        each, tokens that a step gives a request; 1 where there are none."""
        import numpy as np

        count, steps = len(self._who), horizon + 1
        if not count:
            return np.zeros((len(keys), steps), dtype=np.int64)
        places = len(self._counts) + 1  # nobody is in the last one: ranks that are not known
        flight = self._flight.head(count)
        ahead_tokens, grown = horizon, _first(steps)
        by_place = self._by_place(keys, paces) if paces and max(paces) > 1.0 else None
        if by_place is not None:
            ahead_tokens = math.ceil(horizon * by_place.max())
            grown = (by_place[:, None] * grown).astype(np.int64)
        stay = self.predictor.outlook(flight, ahead_tokens).steps(ahead_tokens)
        if by_place is not None:
            stay = stay / by_place[self._rank[:count]]
        # Half steps go up, those that rounding left just below one too.
        left = np.floor(stay + (0.5 + SLIVER)).astype(np.int64)
        # Stays for `left` steps: there at h = 0..left - 1, and to the end if it stays through H.
        np.minimum(np.maximum(left, min(1, horizon), out=left), horizon, out=left)
        left[left == horizon] = steps
        # Steps from the end: a sum up to there is of those that are still there at h = H..0.
        at = self._rank[:count] * steps + (steps - left)
        cells = (places, steps)
        size = places * steps
        held = self._prompt[:count] + flight.age
        tokens = np.bincount(at, held, size).astype(np.int64).reshape(cells).cumsum(axis=1)
        heads = np.bincount(at, minlength=size).reshape(cells).cumsum(axis=1)
        both = tokens[:, ::-1] + grown * heads[:, ::-1]
        found: np.ndarray = both[[self._ranks.get(key, -1) for key in keys]]
        return found

    def _by_place(self, keys: Sequence[Key], paces: Sequence[float]) -> np.ndarray:
        """a_g by a rank's place, float64 [places + 1]."""
        import numpy as np

        found = np.ones(len(self._counts) + 1)
        for key, tokens in zip(keys, paces, strict=True):
            if key in self._ranks:
                found[self._ranks[key]] = max(1.0, tokens)
        return found

    def _judge(self, slot: int) -> None:
        """Hold what the predictor says now of the request at some age of its life, each as likely
        as any other, against what came of it."""
        length = int(self._flight.age[slot])
        age = int(length * (self._ended * GOLDEN % 1.0))
        if length > age:
            outlook = self.predictor.outlook(self._flight.one(slot, age), HORIZON)
            self.predictor.errors.judge(outlook, age, length - age)

    def _enter(self, key: Key) -> int:
        if key not in self._ranks:
            if not self._spare:
                self._spare.append(len(self._counts))
                self._counts.append(0)
            self._ranks[key] = self._spare.pop()
        self._counts[self._ranks[key]] += 1
        return self._ranks[key]

    def _leave(self, key: Key) -> None:
        place = self._ranks[key]
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._ranks[key]
            self._spare.append(place)

    def _grow(self) -> None:
        import numpy as np

        size = 2 * len(self._rank)
        self._rank = np.resize(self._rank, size)
        self._prompt = np.resize(self._prompt, size)
        self._flight = self._flight.grown(size)


@lru_cache(maxsize=64)
def _first(count: int) -> np.ndarray:
    """0..count - 1, not to be changed."""
    import numpy as np

    found = np.arange(count)
    found.setflags(write=False)
    return found
