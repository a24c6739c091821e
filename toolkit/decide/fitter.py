"""Which of several routers over the same workers fits the centroids that all of them use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set


def fitter(own: str, others: Iterable[str], silent: Set[str] = frozenset()) -> str:
    """The first in order of this router, `own`, and the others, but for those who do not answer: a
    router that hangs, or that has no profile. Routers that hear of the same ones agree."""
    return min({*others} - silent | {own})


def newest(own: int, others: Mapping[str, int]) -> str | None:
    """The router whose centroids are of more fits one after the other than `own`, the most, by the
    others' numbers; None: nobody's are. Who begins to fit takes these up first: a router that has
    just come would else bring back those of the profile."""
    newer = {name: serial for name, serial in others.items() if serial > own}
    return min(newer, key=lambda name: (-newer[name], name)) if newer else None


def follows(own: int, fitters: int) -> bool:
    """Whether centroids of the fitter's number of fits take the place of this router's, of `own`.
    Those of a fitter that has just come, and has not looked at the others' yet, do not."""
    return fitters >= own
