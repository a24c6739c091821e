"""`--ls-share SHARE`: so many requests are latency-sensitive, the others best-effort."""

import random
from collections.abc import Iterator
from dataclasses import replace

from toolkit.bench.errors import BenchError
from toolkit.bench.workload import Workload
from toolkit.contract.request_class import RequestClass


def check_share(share: float | None) -> None:
    """BenchError: it is no share."""
    if share is not None and not 0 <= share <= 1:  # nan is none either
        raise BenchError(f"--ls-share is a share from 0 to 1, as 0.2, not {share}")


def draws(share: float, seed: int) -> Iterator[RequestClass]:
    """The classes of the requests (or conversations) of a seed, one after the other.

    Each is latency-sensitive by a draw of its own with probability `share`, so that Poisson
    arrivals stay Poisson in each class. The generator is nobody else's: nothing but classes
    depends on it. Of one seed a larger share only adds latency-sensitive ones.
    """
    source = random.Random(f"classes-{seed}")
    while True:
        urgent = source.random() < share
        yield RequestClass.LATENCY_SENSITIVE if urgent else RequestClass.BEST_EFFORT


def drawn(workload: Workload, share: float, seed: int) -> Workload:
    """The workload with a class for each request (`draws`), all turns of a conversation the
    same."""
    items = []
    for chain, kind in zip(workload.chains(), draws(share, seed), strict=False):
        items += [replace(item, kind=kind.value) for item in chain]
    kinds = {item.kind for item in items}
    remarks = workload.remarks
    if len(kinds) == 1 and 0 < share < 1:
        (alone,) = kinds
        remarks += (
            f"--ls-share {share:g} made all {len(items)} requests {alone}, by chance: ask for more "
            "--num-requests",
        )
    return replace(workload, items=tuple(items), remarks=remarks)
