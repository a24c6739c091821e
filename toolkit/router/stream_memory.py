"""What is kept of a stream while it runs: its ids and events, so that another worker can go on with
it, and what waits to be sent. All of it is charged to the request (`toolkit.router.budget`)."""

from __future__ import annotations

from toolkit.router.budget import Charge

GRAIN = 4096
"""Bytes by which a charge may be wrong: it is not looked at for each event."""
FORGOTTEN = (
    "the router had no memory left to keep what its client has (max_body_total_mib), "
    "so no other worker can go on with it"
)


class StreamMemory:
    """The bytes of one stream, as they were charged last. Without a charge nothing is bounded."""

    __slots__ = ("_charge", "charged")

    def __init__(self, charge: Charge | None) -> None:
        self._charge = charge
        self.charged = 0

    def is_now(self, size: int) -> bool:
        """It holds so many bytes. False when there is no room for them."""
        more = size - self.charged
        if self._charge is None or -GRAIN < more < GRAIN:
            return True
        self.charged = size
        return self._charge.hold(more)
