"""One DP rank: how much it can hold, and who is there."""

from collections import deque
from dataclasses import dataclass, field

from toolkit.policies.base import Group, group_of
from toolkit.simulate.request import Request


@dataclass(eq=False)
class SimulatedRank:
    """One DP rank: how many requests (`slots`) and KV tokens (`capacity`) it can hold. `reserve`:
    KV tokens that it keeps free for each request before it takes one more."""

    name: str
    dp_rank: int
    slots: int
    capacity: int
    reserve: int = 0
    place: int = 0
    """In its group."""
    shares_experts: bool = False
    """With those that it takes its steps with."""
    arriving: deque[Request] = field(default_factory=deque)
    """Bound here, without a place yet."""
    coming: int = 0
    """Requests that have a place and are not in the batch: their KV is on its way or computed."""
    retracted: deque[Request] = field(default_factory=deque)
    running: dict[Request, None] = field(default_factory=dict)
    skipped: int = 0
    """Rounds of its group in which it took no decode step."""

    @property
    def key(self) -> tuple[str, int]:
        return (self.name, self.dp_rank)

    @property
    def experts(self) -> Group:
        """Whose experts its steps load."""
        return group_of(self.key, self.shares_experts)
