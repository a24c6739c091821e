"""ExactMatch: a prompt seen before will be answered at the same length."""

from collections import OrderedDict
from dataclasses import dataclass

from toolkit.policies.predictors.base import Flight, PlacedPrediction
from toolkit.policies.predictors.errors import Errors
from toolkit.policies.predictors.lengths import MEMORY
from toolkit.policies.predictors.outlook import Outlook
from toolkit.policies.predictors.survival import Survival
from toolkit.policies.views import Needs, RequestView

PROMPTS = 65_536
NEW = 0.5
SPREAD = 0.25


@dataclass(slots=True)
class _Seen:
    """Running mean of a prompt's output lengths, tokens, and of their distance from it."""

    mean: float
    off: float = 0.0


class ExactMatch:
    """The length of the last answers to the same prompt, else `Survival`.

    Formula: mean and mean distance of the lengths under the prompt's hash, the newest with weight
    1/2. A prompt whose answers differ by more than `spread` of their mean (sampled at a
    temperature, say) says nothing and is left to Survival, as are prompts not seen yet and requests
    that outlived what was expected (*ours*: the paper's text is silent). Only answers that ended by
    themselves are kept.
    Memory: `prompts` entries, the least recently used goes first. Knobs: `prompts` (65,536),
    `spread` (0.25), `memory` of Survival.
    Source: BalanceRoute (arXiv 2605.06113), predictor *ExactMatch*.
    """

    name = "exact_match"
    needs = Needs(hash=True)

    def __init__(
        self, prompts: int = PROMPTS, spread: float = SPREAD, memory: float = MEMORY
    ) -> None:
        if prompts < 1 or not spread >= 0:
            raise ValueError(f"prompts = {prompts} must be positive, spread = {spread:g} too or 0")
        self.errors = Errors()
        self.hits = 0
        self.others = Survival(memory)
        self._prompts = prompts
        self._spread = spread
        self._seen: OrderedDict[int, _Seen] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def place(self, request: RequestView) -> PlacedPrediction:
        key = request.prompt_hash
        seen = None if key is None else self._seen.get(key)
        if seen is None or seen.off > self._spread * seen.mean:
            return PlacedPrediction(note=key)
        self.hits += 1
        return PlacedPrediction(point=float(round(seen.mean)), note=key)

    def outlook(self, flight: Flight, horizon: int) -> Outlook:
        return self.others.outlook(flight, horizon)

    def ended(self, placed: PlacedPrediction, length: int, by_itself: bool) -> None:
        self.others.ended(placed, length, by_itself)
        key = placed.note
        if key is None or not by_itself or length < 1:
            return
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = _Seen(float(length))
        else:
            seen.off += NEW * (abs(length - seen.mean) - seen.off)
            seen.mean += NEW * (length - seen.mean)
        self._seen.move_to_end(key)
        if len(self._seen) > self._prompts:
            self._seen.popitem(last=False)
