"""The GPUs that experts are placed on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topology:
    """`gpus` is the EP size; GPU g lies on node g // gpus_per_node. 0 = all on one node.

    Raises ValueError for sizes below one and for nodes that do not divide the GPUs.
    """

    gpus: int
    gpus_per_node: int = 0

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(
                f"EP size {self.gpus} is impossible; give the number of GPUs, 1 or more"
            )
        if self.gpus_per_node < 0:
            raise ValueError(f"{self.gpus_per_node} GPUs a node is impossible; give 1 or more")
        if self.gpus_per_node == 0:
            object.__setattr__(self, "gpus_per_node", self.gpus)
        if self.gpus % self.gpus_per_node:
            raise ValueError(
                f"{self.gpus} GPUs do not divide into nodes of {self.gpus_per_node}; every node "
                "must hold equally many, so give a node size that divides the EP size"
            )

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.gpus // self.gpus_per_node

    def slots(self, experts: int, redundant: int) -> int:
        """Slots of each GPU in each layer for `experts` logical and `redundant` further replicas.

        Raises ValueError where SGLang could not load the result (it asserts that the physical
        experts divide by the EP size) or where a replica could only share a GPU with its twin.
        """
        if redundant < 0:
            raise ValueError(f"{redundant} redundant experts is impossible; give 0 or more")
        physical = experts + redundant
        excess = physical % self.gpus
        if excess:
            fitting = [n for n in (redundant - excess, redundant - excess + self.gpus) if n >= 0]
            raise ValueError(
                f"{experts} experts + {redundant} redundant = {physical} do not divide over "
                f"{self.gpus} GPUs, and SGLang refuses that; use "
                f"{' or '.join(map(str, fitting))} redundant experts, or an EP size that divides "
                f"{physical}"
            )
        if redundant > experts * (self.gpus - 1):
            raise ValueError(
                f"{redundant} redundant experts are more than one replica of each of {experts} "
                f"experts on each of {self.gpus} GPUs; use at most {experts * (self.gpus - 1)}"
            )
        return physical // self.gpus
