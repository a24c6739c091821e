"""From one placement to another by a sequence of legal maps, a few experts apart each.

SGLang installs a whole layer's map at once: every slot that changes gets its expert's weights from
some slot that held it before, and the layer waits meanwhile. So a step here says the new rows of
the layers that it touches, and writes `most` slots at most; after each step every expert still has
a slot, and a server may stop between any two.

1. Which GPU plays which part is free where no request is at home anywhere: `aligned` gives GPUs
   (and nodes) of the target to those of the present that hold the most of them already.
2. Slots of one GPU are interchangeable: `arranged` keeps what stays where it is.
3. In each layer first the slots whose expert has another replica: they can be written one by one.
   What is left is a permutation. A cycle of at most `most` slots is written at once; a longer one
   is turned piece by piece, and each piece of m slots puts m - 1 in place.
4. Cheap units first, over all layers: a copy on the same GPU, then one from the same node.

Source: Gimbal relocates every tau steps and does not say how (Algorithm 3, lines 6 to 10); SGLang
moves whole layers (`eplb/eplb_manager.py`, `--eplb-rebalance-layers-per-chunk`). The sequence is
ours. Deterministic.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.placement.base import Placement
from toolkit.placement.topology import Topology

Ints = NDArray[np.int64]
Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Copies:
    """Where written slots get their weights from, in experts of one layer."""

    gpu: int = 0
    """From a slot of the same GPU: nothing is sent."""
    node: int = 0
    """From another GPU of the node."""
    across: int = 0
    """From another node."""

    def __add__(self, other: Copies) -> Copies:
        return Copies(self.gpu + other.gpu, self.node + other.node, self.across + other.across)

    @property
    def sent(self) -> int:
        """Experts that leave their GPU."""
        return self.node + self.across

    @property
    def written(self) -> int:
        """Slots that get another expert."""
        return self.gpu + self.sent


@dataclass(frozen=True, slots=True)
class Step:
    """`rows`: by layer, its new physical-to-logical row [P]; all other layers stay."""

    rows: dict[int, Row]
    copies: Copies


@dataclass(frozen=True, slots=True)
class _Unit:
    """Slots of a layer that are written together, the row that is there then, and the cost."""

    slots: tuple[int, ...]
    row: Row
    cost: tuple[int, int, int]
    """Copies across nodes, from the node, on the GPU."""


def aligned(current: Placement, target: Placement, topology: Topology) -> Placement:
    """The target with its nodes, and the GPUs in each, renamed so that most stays where it is.

    What experts lie together, and so balance and crossings, do not change. Not for a placement
    whose GPUs are somebody's home. Raises ValueError for placements of different sizes.
    """
    from scipy.optimize import linear_sum_assignment

    _same_size(current, target, topology)
    have, want = current.held(), target.held()
    kept = np.einsum("leg,leh->hg", np.minimum(have, 1), np.minimum(want, 1)).astype(np.int64)
    nodes, per = topology.nodes, topology.gpus_per_node
    blocks = kept.reshape(nodes, per, nodes, per)
    inner = np.zeros((nodes, nodes), np.int64)
    choice = np.zeros((nodes, nodes, per), np.int64)
    for there in range(nodes):
        for here in range(nodes):
            block = blocks[there, :, here]
            _, column = linear_sum_assignment(block, maximize=True)
            choice[there, here] = column
            inner[there, here] = block[np.arange(per), column].sum()
    _, home = linear_sum_assignment(inner, maximize=True)
    # Place of target GPU (node t, g): node home[t], GPU choice[t, home[t]][g].
    place = np.concatenate([home[t] * per + choice[t, home[t]] for t in range(nodes)])
    table = target.physical_to_logical.reshape(target.layers, topology.gpus, -1)
    renamed = np.empty_like(table)
    renamed[:, place] = table
    return Placement(renamed.reshape(target.layers, -1), target.experts, target.gpus)


def arranged(current: Placement, target: Placement) -> Placement:
    """The target with the slots of each GPU in an order that keeps what stays in its slot."""
    _same_size(current, target, Topology(current.gpus))
    table = np.array(target.physical_to_logical)
    slots = target.slots
    for layer, (have, want) in enumerate(
        zip(current.physical_to_logical, target.physical_to_logical, strict=True)
    ):
        for first in range(0, len(have), slots):
            part = slice(first, first + slots)
            if (have[part] != want[part]).any():
                table[layer, part] = _keeping(have[part].tolist(), want[part].tolist())
    return Placement(table, target.experts, target.gpus)


def _keeping(have: list[int], want: list[int]) -> list[int]:
    """`want` in an order in which whatever `have` has too lies where `have` has it."""
    coming = Counter(want)
    result = [-1] * len(have)
    for slot, expert in enumerate(have):
        if coming[expert]:
            coming[expert] -= 1
            result[slot] = expert
    rest = iter(sorted(coming.elements()))
    return [next(rest) if expert < 0 else expert for expert in result]


def steps(current: Placement, target: Placement, topology: Topology, most: int) -> list[Step]:
    """The maps between `current` and `target` (`arranged` for it), `most` written slots each.

    Raises ValueError for placements of different sizes and for `most` below 2: two experts that
    change places are two writes.
    """
    if most < 2:
        raise ValueError(f"{most} slots a step: two experts that change places are two; give 2 up")
    _same_size(current, target, topology)
    final = arranged(current, target)
    rows = [tuple(row) for row in current.physical_to_logical.tolist()]
    queues = [
        _units(list(have), want, topology, current.slots, most)
        for have, want in zip(rows, final.physical_to_logical.tolist(), strict=True)
    ]
    heads: list[tuple[tuple[int, int, int], int, _Unit]] = []

    def advance(layer: int) -> None:
        unit = next(queues[layer], None)
        if unit is not None:
            heapq.heappush(heads, (unit.cost, layer, unit))

    for layer in range(current.layers):
        advance(layer)
    found: list[Step] = []
    changed: dict[int, Row] = {}
    used = 0
    while heads:
        _, layer, unit = heapq.heappop(heads)
        if used + len(unit.slots) > most:
            found.append(_step(rows, changed, topology))
            changed, used = {}, 0
        changed[layer] = unit.row
        used += len(unit.slots)
        advance(layer)
    if changed:
        found.append(_step(rows, changed, topology))
    return found


def _step(rows: list[Row], changed: dict[int, Row], topology: Topology) -> Step:
    """What `changed` makes of `rows`, which follow."""
    total = Copies()
    for layer, row in changed.items():
        total += copies(rows[layer], row, topology)
        rows[layer] = row
    return Step(dict(sorted(changed.items())), total)


def copies(before: Sequence[int], after: Sequence[int], topology: Topology) -> Copies:
    """Where SGLang gets the weights of the slots that differ between two rows of a layer."""
    slots = len(before) // topology.gpus
    gpus: dict[int, set[int]] = {}
    for slot, expert in enumerate(before):
        gpus.setdefault(expert, set()).add(slot // slots)
    found = [0, 0, 0]
    got: set[tuple[int, int]] = set()
    for slot, expert in enumerate(after):
        if before[slot] == expert:
            continue
        gpu = slot // slots
        # The second of two slots that a GPU fills with one expert is copied from the first.
        found[0 if (gpu, expert) in got else _distance(gpus[expert], gpu, topology)] += 1
        got.add((gpu, expert))
    return Copies(*found)


def _distance(gpus: Collection[int], gpu: int, topology: Topology) -> int:
    """From the nearest of the GPUs: 0 it is one of them, 1 one of its node is, 2 none is."""
    if gpu in gpus:
        return 0
    node = gpu // topology.gpus_per_node
    return 1 if any(other // topology.gpus_per_node == node for other in gpus) else 2


class _Layer:
    """One layer's row while it is written."""

    def __init__(self, row: list[int], want: list[int], topology: Topology, slots: int) -> None:
        self.row, self.want = row, want
        self.open = {slot for slot, expert in enumerate(want) if row[slot] != expert}
        self._topology, self._slots = topology, slots
        self._gpus: dict[int, Counter[int]] = {}
        for slot, expert in enumerate(row):
            self._gpus.setdefault(expert, Counter())[slot // slots] += 1

    def single(self, slot: int) -> bool:
        """Whether its expert lies nowhere else."""
        return self._gpus[self.row[slot]].total() == 1

    def distance(self, slot: int, expert: int) -> int:
        """How far the slot is from the nearest one with that expert."""
        return _distance(self._gpus[expert].keys(), slot // self._slots, self._topology)

    def write(self, written: dict[int, int]) -> _Unit:
        """Put experts into slots, at once."""
        cost = Counter(self.distance(slot, expert) for slot, expert in written.items())
        for slot, expert in written.items():
            gpu, left = slot // self._slots, self._gpus[self.row[slot]]
            left[gpu] -= 1
            if not left[gpu]:
                del left[gpu]
            self._gpus[expert][gpu] += 1
            self.row[slot] = expert
            if expert == self.want[slot]:
                self.open.discard(slot)
        return _Unit(tuple(written), tuple(self.row), (cost[2], cost[1], cost[0]))


def _units(
    row: list[int], want: list[int], topology: Topology, slots: int, most: int
) -> Iterator[_Unit]:
    """One layer's writes in an order in which each leaves a legal row."""
    layer = _Layer(row, want, topology, slots)
    while layer.open:
        free = [slot for slot in layer.open if not layer.single(slot)]
        if free:
            slot = min(free, key=lambda slot: (layer.distance(slot, want[slot]), slot))
            yield layer.write({slot: want[slot]})
            continue
        # Every expert in an open slot has that slot only: `want` permutes them.
        where = {row[slot]: slot for slot in layer.open}
        cycle = [min(layer.open)]
        while (after := where[want[cycle[-1]]]) != cycle[0]:
            cycle.append(after)
        piece = cycle[:most]
        sources = [*piece[1:], piece[0]]
        yield layer.write({s: row[source] for s, source in zip(piece, sources, strict=True)})


def _same_size(current: Placement, target: Placement, topology: Topology) -> None:
    sizes = [
        (p.layers, p.experts, p.physical_to_logical.shape[1], p.gpus) for p in (current, target)
    ]
    if sizes[0] != sizes[1] or topology.gpus != current.gpus:
        told = [
            f"{layers} layers of {experts} experts in {slots} slots on {gpus} GPUs"
            for layers, experts, slots, gpus in sizes
        ]
        raise ValueError(
            f"the present placement has {told[0]}, the other one {told[1]}, and {topology.gpus} "
            "GPUs are asked for: all must agree"
        )
