"""What a `Mover` sees: requests on decode instances. What it answers: moves."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

Why = Literal["outgrown", "overload", "level", "drain", "asked", "kv_limit"]
"""outgrown: it left its stage's range. overload: its instance holds much more than its stage's
mean. level: the same without stages. drain: its instance is to end. asked: the operator did.
kv_limit: its instance is about to be out of KV."""


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that decodes. `length`: its KV tokens, prompt and output so far; `prompt`: of these
    the prompt's. `movable`: whether it can move at all. `moving`: it is on its way already, so that
    it counts where it goes (`Instance.coming_tokens`) and no more where it is. `left`: output
    tokens it is expected to say yet, None where nobody knows."""

    request: Hashable
    length: int
    movable: bool = True
    moving: bool = False
    prompt: int = 0
    left: int | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """A decode rank. All tokens are KV tokens.

    `running` is all that it holds. `coming_tokens`: of requests on their way to it, which
    `tokens_per_s` takes (by migration; 0: not known). `free_tokens` and `slots_free`: what is free,
    less what those on their way will need. `moving`: moves now from or to it. `held`: it gets none
    (ejected, silent, just started).
    `spare_tokens`: what it has left until its engine retracts requests, where that is not
    `free_tokens`, as it admits no more than leaves a reserve.
    """

    rank: int
    stage: int
    running: tuple[RunningRequest, ...] = ()
    coming_tokens: int = 0
    free_tokens: int = 0
    slots_free: int = 0
    tokens_per_s: float = 0.0
    moving: int = 0
    held: bool = False
    spare_tokens: int | None = None

    @property
    def load(self) -> int:
        """KV tokens that it holds and will go on holding, and those on their way."""
        return self.coming_tokens + sum(each.length for each in self.running if not each.moving)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """`request` is to go from one rank to another."""

    request: Hashable
    source: int
    target: int
    why: Why
