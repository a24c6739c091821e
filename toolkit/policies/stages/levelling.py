"""Loads of instances without stages, brought to the mean from above and from below."""

from collections.abc import Sequence

from toolkit.policies.stages.auction import Account
from toolkit.policies.stages.running import RunningRequest


def uneven(source: float, target: float, mean: float, band: float) -> bool:
    """Whether something is to move between two loads: the one is above the band around the mean, or
    the other below it and the first one above the mean."""
    return source > mean * (1 + band) or (target < mean * (1 - band) and source > mean)


def offers(
    auction: Sequence[Account],
    source: Account,
    movable: Sequence[tuple[int, RunningRequest]],
    band: float,
    most: int,
) -> list[tuple[int, RunningRequest]]:
    """What `source` is to hand to the lightest others, at most so many: each time the largest
    request that is no more than half of what lies between the two, so that neither is to hand
    anything back; where there is none and it is above the band, the smallest that leaves both
    lighter than it is. `movable`: (place, request), in any order."""
    loads = [account.load for account in auction if account.open and account is not source]
    if not loads:
        return []
    own, mean = source.load, (sum(loads) + source.load) / (len(loads) + 1)
    if not source.open:
        mean = sum(loads) / len(loads)
    left = sorted(movable, key=lambda each: -each[1].length)
    offered: list[tuple[int, RunningRequest]] = []
    while left and len(offered) < most:
        at = min(range(len(loads)), key=loads.__getitem__)
        if not uneven(own, loads[at], mean, band):
            break
        gap = own - loads[at]
        fitting = next((each for each in left if each[1].length <= gap / 2), None)
        if fitting is None and own > mean * (1 + band) and left[-1][1].length < gap:
            fitting = left[-1]
        if fitting is None:
            break
        left.remove(fitting)
        offered.append(fitting)
        own -= fitting[1].length
        loads[at] += fitting[1].length
    return offered
