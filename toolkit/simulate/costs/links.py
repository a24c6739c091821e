"""What all-to-all takes: copies over NVLink and the network, charged to the slowest rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from toolkit.simulate.errors import SimulateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


class MeasuredLinks(NamedTuple):
    """One kernel on so many GPUs, 8 a node: seconds for dispatch and for combine."""

    gpus: int
    dispatch_s: float
    combine_s: float


DEEPEP = (
    MeasuredLinks(8, 77e-6, 114e-6),
    MeasuredLinks(16, 118e-6, 195e-6),
    MeasuredLinks(32, 155e-6, 273e-6),
    MeasuredLinks(64, 173e-6, 314e-6),
    MeasuredLinks(128, 192e-6, 369e-6),
    MeasuredLinks(256, 194e-6, 360e-6),
)
"""DeepEP's low-latency kernels on H800 with one 400 Gb/s CX7 a GPU: 128 tokens a rank, top 8 of
experts that lie evenly, 7,168 values, FP8 out, BF16 back; every (token, expert) pair is a copy.
Source: github.com/deepseek-ai/DeepEP, docs/legacy.md, "Low-latency kernels with pure RDMA"."""
DEEPEP_NAME = "deepep"
COPIES, PER_NODE, HIDDEN = 128 * 8, 8, 7168


class Link(BaseModel):
    """One direction: base + the longer of per_node_byte * bytes inside the node and per_byte *
    bytes across, which travel beside each other, for the rank on which that takes longest; a rank's
    bytes are those it sends or those it receives, whichever are more. All in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: Annotated[float, Field(ge=0)] = 0.0
    per_node_byte: Annotated[float, Field(ge=0)] = 0.0
    per_byte: Annotated[float, Field(ge=0)] = 0.0
    element_bytes: Annotated[float, Field(gt=0)] = 2.0

    def seconds(self, hidden: int, node: np.ndarray, across: np.ndarray) -> np.ndarray:
        """[L] for copies [L, G, 2], sent and received, inside nodes and across them."""
        import numpy as np

        size = hidden * self.element_bytes
        each = np.maximum(self.per_node_byte * node, self.per_byte * across) * size
        slowest: np.ndarray = self.base + each.max(axis=(1, 2))
        return slowest


class Work(BaseModel):
    """What a layer's experts compute on the GPU that has most (token, expert) pairs: the longer of
    `least`, in which the weights of its experts are read, and per_pair * pairs. In seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    least: Annotated[float, Field(ge=0)] = 0.0
    per_pair: Annotated[float, Field(ge=0)] = 0.0

    def seconds(self, pairs: np.ndarray) -> np.ndarray:
        """[L] for pairs [L, G]."""
        import numpy as np

        slowest: np.ndarray = np.maximum(self.least, self.per_pair * pairs.max(axis=1))
        return slowest


class Links(BaseModel):
    """Both directions of every MoE layer, on nodes of so many GPUs. Copies that stay on their GPU
    cost nothing. `work`: what experts compute in between; None: another term has it, such as
    `per_distinct` of a decode step. `replicas`: which one of an expert a pair goes to, any
    (SGLang's `--ep-dispatch-algorithm dynamic`) or the nearest to its rank (`static`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden: Annotated[int, Field(ge=1)] = HIDDEN
    gpus_per_node: Annotated[int, Field(ge=1)] = PER_NODE
    dispatch: Link
    combine: Link
    work: Work | None = None
    replicas: Literal["random", "nearest"] = "random"

    def seconds(self, sent: np.ndarray, received: np.ndarray) -> np.ndarray:
        """[L] seconds of dispatch, work and combine for copies [L, G, 3] (own GPU, own node, other
        nodes) as `toolkit.placement.alltoall.SentCopies` has them; combine goes the other way."""
        import numpy as np

        node, across = (np.stack([sent[..., kind], received[..., kind]], axis=2) for kind in (1, 2))
        moved = self.dispatch.seconds(self.hidden, node, across)
        moved += self.combine.seconds(self.hidden, node, across)
        return moved if self.work is None else moved + self.work.seconds(received.sum(axis=2))


def fitted(table: Sequence[MeasuredLinks], element_bytes: tuple[float, float]) -> Links:
    """From a table measured like DEEPEP: base and the network by least squares over what is larger
    than a node, each row by its relative error, NVLink by the row of one node.

    SimulateError: no row of one node, or fewer than two larger ones.
    """
    import numpy as np

    one = [row for row in table if row.gpus == PER_NODE]
    more = [row for row in table if row.gpus > PER_NODE]
    if not one or len(more) < 2:
        raise SimulateError(
            f"measurements are needed on one node of {PER_NODE} GPUs and on two sizes above it"
        )
    links = []
    for direction, size in enumerate(element_bytes, start=1):
        across = np.array([COPIES * (1 - PER_NODE / row.gpus) for row in more]) * HIDDEN * size
        seconds = np.array([row[direction] for row in more])
        terms = np.stack([np.ones(len(more)), across], axis=1) / seconds[:, None]
        (base, far), *_ = np.linalg.lstsq(terms, np.ones(len(more)), rcond=None)
        inside = COPIES * (1 - 1 / PER_NODE) * HIDDEN * size
        near = max(0.0, one[0][direction] - base) / inside
        links.append(Link(base=base, per_node_byte=near, per_byte=far, element_bytes=size))
    return Links(dispatch=links[0], combine=links[1])


def deepep() -> Links:
    """Those of DEEPEP, within 10 % of each row: FP8 with a 4-byte scale for each 128 values out,
    BF16 back."""
    return fitted(DEEPEP, (1 + 4 / 128, 2.0))
