"""`--ls-share`: classes for requests that have none."""

from collections.abc import Iterable, Iterator

from toolkit.bench.classes import draws
from toolkit.contract.request_class import RequestClass
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.request import Request


def with_classes(requests: Iterable[Request], share: float, seed: int = 0) -> Iterator[Request]:
    """The same requests, of which so large a share is latency-sensitive and the rest best-effort,
    drawn as `toolkit bench --ls-share` does; all turns of a conversation alike.

    SimulateError: a request that has a class of its own.
    """
    source = draws(share, seed)
    known: dict[int, RequestClass] = {}
    for request in requests:
        if request.request_class is not RequestClass.STANDARD:
            raise SimulateError(
                f"request {request.number} is {request.request_class.value} by its trace or "
                "traffic file, and --ls-share would draw another class: leave --ls-share out"
            )
        talk = request.conversation
        if talk is None:
            request.request_class = next(source)
        else:
            request.request_class = known[talk] if talk in known else next(source)
            known[talk] = request.request_class
        yield request
