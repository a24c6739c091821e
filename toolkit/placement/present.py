"""The expert map of a running server, read from what the server says of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toolkit.contract.placement import PlacementState
from toolkit.placement.base import Placement
from toolkit.placement.topology import Topology


@dataclass(frozen=True)
class Present:
    """The map as it is. `placement` is of the layers that have experts: `layers` numbers them.

    `expert_bytes`: of one expert of one layer. `nearest`: a token goes to the nearest replica,
    else to each in turn.
    """

    serial: int
    placement: Placement
    layers: tuple[int, ...]
    topology: Topology
    expert_bytes: int
    nearest: bool

    @classmethod
    def of(cls, state: PlacementState) -> Present:
        """From the server's answer. ValueError: layers that are missing, sizes that do not fit."""
        missing = [layer for layer in state.moe_layers if str(layer) not in state.layers]
        if missing or not state.moe_layers:
            raise ValueError(f"no expert map of layers {missing[:5] or 'with experts'}")
        rows = [state.layers[str(layer)] for layer in state.moe_layers]
        if len({len(row) for row in rows}) > 1:
            raise ValueError("the layers of the expert map have different numbers of slots")
        return cls(
            state.serial,
            Placement(np.array(rows), state.experts, state.gpus),
            state.moe_layers,
            Topology(state.gpus, state.gpus_per_node),
            state.expert_bytes,
            state.dispatch == "static",
        )
