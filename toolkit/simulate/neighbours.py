"""Workers that slow each other down, as CPU workers do that share a machine's cores."""

from typing import Literal, Protocol

from toolkit.simulate.fleet import Machine

Kind = Literal["prefill", "decode"]


class Party(Protocol):
    """A worker that computes. `set_speed`: 1 is that of one that computes alone."""

    def set_speed(self, speed: float) -> None: ...


class Neighbours:
    """Each that computes is as fast as `Machine` says beside every other one that does.

    Beside one at which it has the speed s a step takes 1/s as long; what several add is summed.
    """

    def __init__(self, machine: Machine) -> None:
        self._longer: dict[tuple[Kind, Kind], float] = {
            ("decode", "decode"): 1 / machine.decode_beside_decode - 1,
            ("decode", "prefill"): 1 / machine.decode_beside_prefill - 1,
            ("prefill", "decode"): 1 / machine.prefill_beside_decode - 1,
            ("prefill", "prefill"): 1 / machine.prefill_beside_prefill - 1,
        }
        self._busy: dict[Party, Kind] = {}

    def busy(self, party: Party, kind: Kind) -> None:
        """It computes now."""
        if self._busy.get(party) != kind:
            self._busy[party] = kind
            self._pace()

    def idle(self, party: Party) -> None:
        """It does not compute any more."""
        if self._busy.pop(party, None) is not None:
            self._pace()

    def _pace(self) -> None:
        kinds = list(self._busy.values())
        for party, kind in self._busy.items():
            longer = sum(self._longer[kind, other] for other in kinds) - self._longer[kind, kind]
            party.set_speed(1 / (1 + longer))
