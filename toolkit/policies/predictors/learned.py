"""Learned: distributions by what is known of a request; those that predict best decide."""

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from toolkit.policies.predictors.base import LONGEST, Flight, PlacedPrediction
from toolkit.policies.predictors.errors import Errors
from toolkit.policies.predictors.lengths import MEMORY, Lengths
from toolkit.policies.predictors.outlook import Outlook
from toolkit.policies.views import Needs, RequestView

ROWS = 512
BACK_OFF = 8.0
KEEP = 0.998
NOTHING = 1e-9
"""A gain (log likelihood ratio) that is no more is the rounding of shares that are equal."""
TRIED = 16
"""Least recently used rows that are looked at for one that no request in flight stands on."""

VIEWS: tuple[tuple[str, ...], ...] = (
    ("label",),
    ("user",),
    ("prompt",),
    ("limit",),
    ("label", "prompt"),
    ("label", "limit"),
    ("user", "prompt"),
    ("user", "label"),
)
Key = tuple[int, tuple[Hashable, ...]]


@dataclass(slots=True)
class View:
    """One choice of features; `gain` is how much better than the root it has predicted lately:
    the running mean of log likelihood ratios, judged before learning."""

    features: tuple[str, ...]
    gain: float = 0.0
    judged: int = 0

    def judge(self, gain: float) -> None:
        self.judged += 1
        self.gain += max(1 - KEEP, 1 / self.judged) * (gain - self.gain)


class Learned:
    """Survival distributions for groups of requests, smoothed by the one for all (*ours*).

    A *view* is a choice of features: label, user, prompt length and limit (both by powers of two).
    Each view keeps a distribution (`Lengths`) for every value of its features that it has seen,
    mixed with `back_off` requests' worth of the distribution for all (the root), so that a group of
    which little is known predicts what the root does. When a request has ended, each view is judged
    by how likely it held that length beside the root, *before* it learns it. A request is placed in
    the view with the highest mean gain among those that know its features, in the root when none
    gains.

    Why this and not a regression or a network: it has no learning rate, nothing to train and no
    step that can diverge; it answers with a distribution conditional on the age, which is what
    p_fin needs (a mean length does not tell a certain 200 from a coin toss between 10 and 390); a
    feature that says nothing here loses to the root by itself; and it follows what changes, since
    counts and gains fade.
    Memory: `rows` distributions (10 KB each), the least recently used that no request in flight
    stands on goes first; where there is none, the view sits this request out. Knobs: `rows` (512),
    `back_off` (8 requests), `memory` (2000 a row).
    """

    name = "learned"
    needs = Needs(user=True)

    def __init__(
        self,
        rows: int = ROWS,
        back_off: float = BACK_OFF,
        memory: float = MEMORY,
    ) -> None:
        if rows < 2 or not back_off > 0:
            raise ValueError(f"rows = {rows} must be 2 or more, back_off = {back_off:g} above 0")
        self.errors = Errors()
        self.lengths = Lengths(rows, memory)
        self.views = [View(features) for features in VIEWS]
        self._back_off = back_off
        self._keys: OrderedDict[Key, int] = OrderedDict()
        self._inflight = [0] * rows
        self._root_at = [0.0] * rows
        self._free = list(range(rows - 1, 0, -1))

    def place(self, request: RequestView) -> PlacedPrediction:
        """Notes every view and the row that it has for the request, for `ended`."""
        features = self._features(request)
        stands: list[tuple[int, int]] = []
        best, most = None, NOTHING
        for at, view in enumerate(self.views):
            values = tuple([features[name] for name in view.features])
            if None in values:
                continue
            row = self._row((at, values))
            if row is not None:
                self._inflight[row] += 1
                stands.append((at, row))
                if view.gain > most:
                    best, most = row, view.gain
        if best is None:
            return PlacedPrediction(0, 0.0, stands)
        self._smooth(best)
        return PlacedPrediction(best, 0.0, stands)

    def outlook(self, flight: Flight, horizon: int) -> Outlook:
        return self.lengths.outlook(flight, horizon)

    def ended(self, placed: PlacedPrediction, length: int, by_itself: bool) -> None:
        lengths = self.lengths
        rows = [0, *[row for _, row in placed.note]]
        if by_itself:
            root, *others = lengths.near(rows, length)
            base = _share(root, 1 / LONGEST, 1.0)
            for (at, _), near in zip(placed.note, others, strict=True):
                self.views[at].judge(math.log(_share(near, base, self._back_off) / base))
        for row in rows[1:]:
            self._inflight[row] -= 1
        lengths.learn(rows, length, by_itself)
        lengths.refresh(0)

    def _features(self, request: RequestView) -> dict[str, Hashable]:
        """What is not known is None."""
        return {
            "label": request.label,
            "user": request.user,
            "prompt": max(0, request.prompt_tokens).bit_length(),
            "limit": request.max_new_tokens.bit_length() if request.max_new_tokens > 0 else None,
        }

    def _row(self, key: Key) -> int | None:
        row = self._keys.get(key)
        if row is not None:
            self._keys.move_to_end(key)
            return row
        if not self._free:
            self._evict()
        if not self._free:
            return None
        row = self._free.pop()
        self._keys[key] = row
        self.lengths.forget(row)
        return row

    def _evict(self) -> None:
        for key, _ in zip(self._keys, range(TRIED), strict=False):
            row = self._keys[key]
            if not self._inflight[row]:
                del self._keys[key]
                self._free.append(row)
                return

    def _smooth(self, row: int) -> None:
        """Make the row's tables again when it, or the root under it, has learned enough."""
        root = float(self.lengths.seen[0])
        changed = not 0.9 * root <= self._root_at[row] <= 1.1 * root
        if self.lengths.refresh(row, self.lengths.masses(0), self._back_off, changed):
            self._root_at[row] = root


def _share(near: tuple[float, float], prior: float, weight: float) -> float:
    """Of a row's requests, those that ended at about one length (`Lengths.near`), where `prior` is
    that share among `weight` more requests."""
    ended, seen = near
    return (ended + weight * prior) / (seen + weight)
