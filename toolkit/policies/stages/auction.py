"""An auction in which instances ask and bid during one pass; it knows what was agreed already."""

from collections.abc import Callable, Iterable, Sequence
from math import inf

from toolkit.policies.stages.running import Instance, RunningRequest

Quality = Callable[[Sequence[tuple[int, int]]], float]
"""Q^B of a batch from the (prompt, KV tokens) of its requests: the sum over them of their seconds
by output token (`toolkit.policies.stages.qoe.Qoe.batch`)."""


class Account:
    """One instance's account: as it was read, and what this pass has agreed since."""

    def __init__(self, place: int, instance: Instance) -> None:
        self.place = place
        self.instance = instance
        self.load = instance.load
        self.coming = instance.coming_tokens
        self.free = instance.free_tokens
        self.slots = instance.slots_free
        self.moving = instance.moving
        self.leaving: set[int] = set()
        self.won: list[RunningRequest] = []

    @property
    def open(self) -> bool:
        """Whether it may get any at all."""
        return not self.instance.held

    @property
    def start_s(self) -> float:
        """The earliest start of a transfer to it: what is on its way first has to come."""
        if not self.coming:
            return 0.0
        speed = self.instance.tokens_per_s
        return self.coming / speed if speed > 0 else inf

    @property
    def spare(self) -> int:
        """KV tokens until it has none, with those of requests that are on their way to others."""
        own = self.instance.spare_tokens
        leaving = sum(each.length for each in self.instance.running if each.moving)
        return leaving + (self.free if own is None else own)

    def fits(self, length: int, reserve: int) -> bool:
        return self.open and self.slots > 0 and length + reserve <= self.free

    def movable(self) -> Iterable[tuple[int, RunningRequest]]:
        """By their place in `running`: those that neither move nor were agreed about."""
        for place, each in enumerate(self.instance.running):
            if each.movable and not each.moving and place not in self.leaving:
                yield place, each

    def give(self, place: int) -> None:
        self.leaving.add(place)
        self.load -= self.instance.running[place].length
        self.moving += 1

    def take(self, request: RunningRequest) -> None:
        self.won.append(request)
        self.load += request.length
        self.coming += request.length
        self.free -= request.length
        self.slots -= 1
        self.moving += 1

    def batch(self) -> list[tuple[int, int]]:
        """(prompt, KV tokens) of what it will hold. Of those on their way from earlier passes only
        the sum is known: they count as one."""
        running = enumerate(self.instance.running)
        stay = [e for i, e in running if not e.moving and i not in self.leaving]
        batch = [(each.prompt, each.length) for each in (*stay, *self.won)]
        if self.instance.coming_tokens:
            batch.append((0, self.instance.coming_tokens))
        return batch


def winner(bids: Sequence[Account]) -> Account:
    """Whose bid wins, of at least one. CascadeInfer, section 4.4: the half with the higher load is
    out; of the rest the three that can start first reply, and the first reply wins. Here all bids
    lie on one table, so the first reply is the one with the earliest start, of equal ones that with
    the least load."""
    ordered = sorted(bids, key=lambda account: (account.load, account.place))
    lighter = ordered[: (len(ordered) + 1) // 2]
    return min(lighter, key=lambda account: (account.start_s, account.load, account.place))


def gain_s(quality: Quality, source: Account, target: Account, place: int) -> float:
    """By how many seconds an output token of all requests of both together gets cheaper when the
    one at `place` of the source's goes to the target."""
    request = source.instance.running[place]
    own = (request.prompt, request.length)
    here, there = source.batch(), target.batch()
    rest = list(here)
    rest.remove(own)
    return quality(here) + quality(there) - quality(rest) - quality([*there, own])
