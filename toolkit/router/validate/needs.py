"""Things that need each other, such as the rules of a grammar: which of them can be had at all?"""

from __future__ import annotations


def met(ways: list[list[list[int]]]) -> list[bool]:
    """Of each thing, whether it can be had. `ways` has for each its alternatives, and for each
    alternative what it cannot do without; what has no alternatives can be had. The time is linear
    in all of them together."""
    can = [not alternatives or [] in alternatives for alternatives in ways]
    unmet: list[int] = []
    owner: list[int] = []
    waiting: list[list[int]] = [[] for _ in ways]
    for thing, alternatives in enumerate(ways):
        if can[thing]:
            continue
        for needs in alternatives:
            for need in needs:
                waiting[need].append(len(unmet))
            unmet.append(len(needs))
            owner.append(thing)
    found = [thing for thing, does in enumerate(can) if does]
    while found:
        for way in waiting[found.pop()]:
            unmet[way] -= 1
            if not unmet[way] and not can[owner[way]]:
                can[owner[way]] = True
                found.append(owner[way])
    return can
