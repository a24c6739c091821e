"""A policy; with what it sees and what it answers, all that who writes one takes from here.

What a policy is made of (`toolkit.policies.support`) stands below it, and takes that from
`toolkit.policies.views`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from toolkit.policies.following import Following
from toolkit.policies.support.expert_locality import ExpertLocality
from toolkit.policies.support.inflight_lengths import InflightLengths
from toolkit.policies.views import (
    Decision,
    Group,
    Load,
    Needs,
    Refits,
    RequestView,
    Side,
    WorkerView,
    group_count,
    group_of,
    healthy_indices,
    one_group,
)

__all__ = [
    "Decision",
    "Group",
    "Load",
    "Needs",
    "Policy",
    "Refits",
    "RequestView",
    "Side",
    "WorkerView",
    "group_count",
    "group_of",
    "healthy_indices",
    "one_group",
]


class Policy(ABC):
    """`(workers, request) -> decision`. State, such as a rotation, lives in the object."""

    name: str
    needs: Needs = Needs()
    on_record: bool = False
    """Whether its home is to follow requests for the record, although it may not need that."""
    counters: Any = None
    """A dataclass of what it counts of its decisions, for those who look."""
    inflight: InflightLengths | None = None
    """With the need `lengths`: what `Following` keeps for it."""
    locality: ExpertLocality | None = None
    """With the need `signature`: who wants centroids, itself or a part of it; with the need
    `inflight_signatures` who wants these too."""

    @abstractmethod
    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        """Pick a healthy worker; None when there is none."""

    def replaced(self, worker: str) -> None:  # noqa: B027 (most know nothing of it)
        """Another process answers where that worker did: what is known of the former one's state,
        its cache say, is not so any more. Its requests are told of by `follow`."""

    def follow(self) -> Following:
        """Whom its home tells what is sent, and what becomes of it."""
        return Following(self.inflight, self.locality)
