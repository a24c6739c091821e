"""Whether new requests are refused, so that those that run can come to their ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Draining:
    """`on`: for now, or for good where the router is `ending`."""

    on: bool = False
    ending: bool = False

    def end(self) -> None:
        """For good."""
        self.on = self.ending = True
