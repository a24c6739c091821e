"""Assignment in rounds: many finished prefills and many decode ranks at a time.

A `Policy` answers one request; an `Assigner` sees the whole pool of finished prefills, once a
decode step or at once when a prefill is done while a slot is free. The router, SGLang's DP
controller, the simulator and the tests call the same object.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from toolkit.policies.base import Policy, RequestView, WorkerView


class Assignment(NamedTuple):
    """`request` and `worker` index into the sequences that were given; `reason` for logs, tests."""

    request: int
    worker: int
    reason: str


class Assigner(Policy):
    """A policy that also answers `(workers, waiting) -> assignments`; its `needs` say `pool`.

    `workers` are decode ranks as they are now, `waiting` finished prefills in order of arrival.
    Every request is assigned at most once, to a healthy rank with a free slot and free KV for it;
    who is not assigned stays in the pool. When a round ends, no slot is free that a waiting request
    could use. `readings.read_ranks` says what a rank without a reading, or with an impossible one,
    counts as.
    """

    @abstractmethod
    def assign(
        self, workers: Sequence[WorkerView], waiting: Sequence[RequestView]
    ) -> list[Assignment]:
        """One round, in the order in which it was decided."""
