"""In which order patches are put in, as they declare it: `after` and `independent_of` of a `Patch`.

Of two patches that wrap one symbol, one is inside the other. Which one it is often decides whether
both work, so it follows from what their authors have said and from nothing else: two of which
nobody said anything are refused, and so is an order that contradicts itself or speaks of what is
not there.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import combinations

from patches.base import Patch, PatchError


def inner_first(patches: Sequence[Patch]) -> tuple[Patch, ...]:
    """The same patches, each behind all that it is to wrap. It does not matter in which order they
    are given.

    Raises:
        PatchError: what is declared does not fit together, or says too little.
    """
    for patch in patches:
        _check_names(patch, patches)
    by_name = {patch.name: patch for patch in patches}
    graph = {name: sorted(by_name[name].after) for name in sorted(by_name)}
    try:
        in_order = tuple(by_name[name] for name in TopologicalSorter(graph).static_order())
    except CycleError as error:
        circle = ", which is after ".join(reversed(error.args[1]))
        raise PatchError(f"the order of patches goes in a circle: {circle}") from error
    for symbol, wrapping in wrapped_symbols(in_order).items():
        _check_symbol(symbol, wrapping)
    return in_order


def wrapped_symbols(patches: Iterable[Patch]) -> dict[str, list[Patch]]:
    """The patches that wrap each symbol, in the order in which they are given; by symbol."""
    found: dict[str, list[Patch]] = defaultdict(list)
    for patch in patches:
        for symbol in sorted(patch.wraps):
            found[symbol].append(patch)
    return dict(found)


def _check_names(patch: Patch, patches: Sequence[Patch]) -> None:
    by_name = {other.name: other for other in patches}
    for field in ("after", "independent_of"):
        for name in getattr(patch, field):
            said = f"patch {patch.name}: {field} names {name!r}"
            if name == patch.name:
                raise PatchError(f"{said}, which is itself")
            if name not in by_name:
                raise PatchError(f"{said}, which is no patch")
            if not patch.wraps & by_name[name].wraps:
                raise PatchError(f"{said}, but the two wrap no symbol in common: take it out")
            if not getattr(patch, field)[name].strip():
                raise PatchError(f"{said} without saying why")
    for name in patch.independent_of:
        other = by_name[name]
        if name in patch.after or patch.name in (*other.after, *other.independent_of):
            raise PatchError(
                f"patch {patch.name}: independent_of names {name!r}, of which the order is "
                "declared elsewhere, too: leave one of the two"
            )


def _check_symbol(symbol: str, wrapping: Sequence[Patch]) -> None:
    """Of each two of them somebody must have said which one wraps the other, or that it is all the
    same."""
    inside: dict[str, set[str]] = {}
    here = {patch.name for patch in wrapping}
    for patch in wrapping:  # those inside come first
        within = here & set(patch.after)
        inside[patch.name] = within.union(*(inside[name] for name in within))
    for first, second in combinations(wrapping, 2):
        apart = second.name in first.independent_of or first.name in second.independent_of
        if not apart and first.name not in inside[second.name]:
            raise PatchError(
                f"patches {first.name} and {second.name} both wrap {symbol} and neither says in "
                "which order: give the outer one `after`, or one of them `independent_of`, each "
                "with the reason"
            )
