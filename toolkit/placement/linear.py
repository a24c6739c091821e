"""SGLang's default: physical slot p holds expert p modulo E, whatever the traffic."""

import numpy as np

from toolkit.placement.base import Placement
from toolkit.placement.topology import Topology


def linear(layers: int, experts: int, topology: Topology, redundant: int = 0) -> Placement:
    """`--init-expert-location trivial`. Raises ValueError for sizes that do not divide."""
    topology.slots(experts, redundant)
    row = np.arange(experts + redundant) % experts
    return Placement(np.tile(row, (layers, 1)), experts, topology.gpus)
