"""Which request of a profile each simulated one behaves like."""

import random
from collections.abc import Iterable, Iterator

from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.request import Request


def with_rows(
    requests: Iterable[Request], experts: SimulatedExperts, seed: int = 0
) -> Iterator[Request]:
    """The same requests, each with a row of the profile's traffic (`SimulatedExperts.traffic`): one
    whose labels have the request's `label` among them (`SimulatedExperts.labels`: domain, language,
    domain/language), drawn at random; any row for a request without a label, or with one that no
    row of the traffic has."""
    source = random.Random(f"rows-{seed}")
    known: dict[str, list[int]] = {}
    if experts.labels:
        for row in experts.traffic:
            for label in experts.labels[row]:
                known.setdefault(label, []).append(row)
    for request in requests:
        request.row = source.choice(known.get(request.label, experts.traffic))
        yield request
