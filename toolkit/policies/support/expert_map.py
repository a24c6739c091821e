"""Where the experts of one server lie, as its DP ranks see them: what of a request stays near."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from toolkit import exact

if TYPE_CHECKING:
    import numpy as np

OWN = 0.25
"""What staying on the rank's own GPU is worth beyond staying in its node, of what not crossing
nodes is worth in all: `toolkit.placement.joint.Weights` has 1 for a hop in a node, 4 across."""
BITS = 20
"""Of values: with `exact.BITS` for signatures and D < 65,536 every sum is exact."""


@dataclass(frozen=True, eq=False)
class ExpertMap:
    """The map of one server with R DP ranks, R / N on each of N nodes, for signatures of length D.

    slots [R, S]: which entry of a signature each expert slot on a rank's GPUs serves; own, near
    [R, S]: the (token, expert) pairs that a unit of that entry stands for, as far as the slot
    serves those of tokens at home on its rank, in its node. pairs [D]: all that a unit of each
    entry stands for. The layers of the signature count, others do not, and neither do experts that
    every request uses: their weight in a signature is 0.

    Share of a request's pairs for rank r on node n, both in [0, 1]:

        s_r = (1 - OWN) * (pairs served in n) / all + OWN * (pairs served on r) / all

    so 1 - s_r is what dispatch costs in units of crossing nodes with every pair. One gather of the
    slots: O(D + R * S), and R * S are the slots of a server however many ranks it has.
    ValueError: shapes that do not belong together, values that are negative or not finite.
    """

    slots: np.ndarray
    own: np.ndarray
    near: np.ndarray
    pairs: np.ndarray
    nodes: int = 1

    def __post_init__(self) -> None:
        import numpy as np

        shape = self.slots.shape
        if len(shape) != 2 or not {self.own.shape, self.near.shape} <= {shape}:
            raise ValueError(
                f"slots, own and near have shapes {shape}, {self.own.shape}, {self.near.shape}; "
                "all three must be [ranks, slots]"
            )
        if self.nodes < 1 or not shape[0] or shape[0] % self.nodes:
            raise ValueError(f"{shape[0]} ranks do not lie on {self.nodes} nodes equally")
        if self.pairs.ndim != 1:
            raise ValueError(f"pairs have shape {self.pairs.shape}; [values] is needed")
        if self.slots.size and not 0 <= self.slots.min() <= self.slots.max() < self.dimensions:
            raise ValueError(f"slots name entries outside 0..{self.dimensions - 1}")
        for name in ("own", "near", "pairs"):
            values = getattr(self, name)
            if not np.isfinite(values).all() or (values < 0).any():
                raise ValueError(f"{name} must be finite and not negative")

    @property
    def ranks(self) -> int:
        return int(self.slots.shape[0])

    @property
    def dimensions(self) -> int:
        """D: the length of a signature."""
        return int(self.pairs.shape[0])

    @cached_property
    def _whole(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Flat slots, and own, near and pairs as whole numbers of one unit."""
        import numpy as np

        top = float(max(each.max(initial=0.0) for each in (self.own, self.near, self.pairs)))
        own, near, pairs = (
            exact.grid(each, BITS, top) for each in (self.own, self.near, self.pairs)
        )
        return np.ascontiguousarray(self.slots.ravel()), own, near, pairs

    def shares(self, signature: np.ndarray) -> np.ndarray | None:
        """s_r [R] for a unit signature [D]; None where nothing in it counts."""
        import numpy as np

        slots, own, near, pairs = self._whole
        whole = exact.whole(signature)
        total = float(whole @ pairs)
        if not total > 0:
            return None
        taken = whole.take(slots).reshape(own.shape)
        here = np.einsum("rs,rs->r", taken, own)
        by_node = np.einsum("rs,rs->r", taken, near).reshape(self.nodes, -1).sum(axis=1)
        there = np.repeat(by_node, self.ranks // self.nodes)
        found: np.ndarray = ((1 - OWN) * there + OWN * here) / total
        return found

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        arrays = {name: getattr(self, name).tolist() for name in ("slots", "own", "near", "pairs")}
        return arrays | {"nodes": self.nodes}

    @classmethod
    def of_plain(cls, data: dict[str, Any]) -> ExpertMap:
        """From what `plain` gave."""
        import numpy as np

        slots = np.array(data["slots"], np.int64)
        own, near, pairs = (np.array(data[name], np.float64) for name in ("own", "near", "pairs"))
        return cls(slots, own, near, pairs, data["nodes"])
