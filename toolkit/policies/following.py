"""What is in flight, told once: who was sent, what came, how it ended, which rank was lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from toolkit.policies.support.expert_locality import ExpertLocality
    from toolkit.policies.support.inflight_lengths import InflightLengths
    from toolkit.policies.support.inflight_signatures import InflightSignatures
    from toolkit.policies.views import Group, RequestView

Key = tuple[str, int]


class _Flight(NamedTuple):
    """Where a request runs. `leave`: where its signature lies, None for one without."""

    key: Key
    leave: tuple[InflightSignatures, Group, np.ndarray] | None


class Following:
    """Feeds a policy's lengths (BR-H) and in-flight signatures (ELDR) with what its home sees of
    requests.

    The router, SGLang's DP controller and the simulator tell it the same five things. `rid` is the
    home's own name of a request: sent twice, it is where it was sent last, and one that is not
    known is ignored. A policy that needs neither costs nothing: its home asks `needs.following`.
    Users are no part of it: a policy notes them in the decision itself, as the next one of the same
    round asks for them.
    """

    def __init__(self, lengths: InflightLengths | None, locality: ExpertLocality | None) -> None:
        """`lengths`, `locality`: the policy's; None where it has no such need."""
        self._locality = locality
        self._lengths = lengths
        self._flights: dict[str, _Flight] = {}

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._flights)

    def __contains__(self, rid: str) -> bool:
        return rid in self._flights

    @property
    def lengths(self) -> bool:
        """Whether tokens and ends say something to the policy."""
        return self._lengths is not None

    def sent(
        self, rid: str, key: Key, group: Group, request: RequestView, generated: int = 0
    ) -> None:
        """The request goes to the rank `key` of the worker `group` (`group_of`). `generated`:
        tokens that it had before, as part of the prompt."""
        self._leave(rid)
        if self._lengths is not None:
            self._lengths.sent(rid, key, request, generated)
        self._flights[rid] = _Flight(key, self._settle(group, request.signature))

    def counted(self, rid: str, tokens: int = 1) -> None:
        """That many more tokens came, or fewer than was thought."""
        if self._lengths is not None:
            self._lengths.counted(rid, tokens)

    def stepped(self, key: Key, tokens: int) -> None:
        """All that runs on the rank made that many more tokens."""
        if self._lengths is not None:
            self._lengths.stepped(key, tokens)

    def all_stepped(self, steps: Mapping[Key, int]) -> None:
        """`stepped` of several ranks at once."""
        if self._lengths is not None:
            self._lengths.all_stepped(steps)

    def ended(self, rid: str, finished: bool = True) -> None:
        """It is gone; `finished` by itself or by its limit, not aborted or lost."""
        if self._lengths is not None:
            self._lengths.ended(rid, finished)
        self._leave(rid)

    def lost(self, key: Key) -> list[str]:
        """The rank is gone, and all that ran on it: their names."""
        if self._lengths is not None:
            self._lengths.lost(key)
        gone = list(self._on(key))
        for rid in gone:
            self._leave(rid)
        return gone

    def _on(self, key: Key) -> Iterator[str]:
        return (rid for rid, flight in self._flights.items() if flight.key == key)

    def _settle(
        self, group: Group, signature: np.ndarray | str | None
    ) -> tuple[InflightSignatures, Group, np.ndarray] | None:
        locality = self._locality
        inflight_signatures = None if locality is None else locality.inflight_signatures
        if inflight_signatures is None or signature is None or isinstance(signature, str):
            return None
        inflight_signatures.add(group, signature)
        return inflight_signatures, group, signature

    def _leave(self, rid: str) -> None:
        flight = self._flights.pop(rid, None)
        if flight is not None and flight.leave is not None:
            inflight_signatures, group, signature = flight.leave
            inflight_signatures.remove(group, signature)
