"""Which node holds which experts of a layer, where clusters have home nodes: part of `clusters`.

E experts, N nodes, P replicas. Loads are in units of a GPU's mean.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolkit.placement.replicas import DIGITS
from toolkit.placement.swaps import Layer, improve
from toolkit.placement.topology import Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HEAVY = 0.7
"""Load of a replica above which its expert gets one more."""
FAR = 0.42
"""The same of what a replica serves of other nodes' tokens: its GPU would receive most."""
SPARE = 0.1
"""What a replica serves of other nodes' tokens, below which one more would not relieve it."""
EVENINGS, MOST_WORTH = 6, 4.0
"""Assignments by which `worth` is found, and its highest value."""
TRIES = 4
"""At replicas that are not too heavy."""
PASSES = ((3.0, False), (30.0, False), (300.0, True), (300.0, True))
"""Of exchanges between nodes: price of a node's load above its limit, in mean gains of a replica
for one node's mean load; whether only experts with one replica move. How busy the others are
depends on where they all lie, so they move while prices are low, and then stay."""
ROUNDS = 40
STRICTER = 8
"""A node's share of what a GPU's limit leaves above the mean: packing inside it needs the rest."""
SPARED = 0.1
"""Of the mean node's load: so much less a node may have that serves other nodes' tokens more than
most, since what crosses nodes costs more than what is computed. The others have it."""
PINNED = 1e5


@dataclass(eq=False)
class Nodes:
    """One layer: `saved` [E, N], load from the tokens at home on each node.

    least [E]: replicas at least; barred [E, N]: where an expert had better not lie, since one
    replica could not bear that node's own tokens. Both grow where replicas turn out too heavy.
    worth [N]: of what stays in each node, more where little does: every layer waits for the GPU
    that sends or receives most.
    """

    saved: Floats
    topology: Topology
    redundant: int
    least: Ints = field(init=False)
    barred: NDArray[np.bool_] = field(init=False)
    worth: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.least = np.ones(len(self.saved), np.int64)
        self.barred = self.saved > HEAVY
        self.worth = np.ones(self.topology.nodes)

    def placed(self) -> tuple[Ints, Ints]:
        """(expert [P], node [P]) of replicas: the most load that stays in its node.

        Two of one expert may come to lie in one node; exchanges put that right.
        """
        from scipy.optimize import linear_sum_assignment

        expert = np.repeat(np.arange(len(self.saved)), self._replicas())
        slots = len(expert) // self.topology.nodes
        gain = self._gain()[expert]
        _, column = linear_sum_assignment(np.repeat(gain, slots, axis=1), maximize=True)
        return expert, column.astype(np.int64) // slots

    def levelled(self, limit: float) -> tuple[Ints, Ints]:
        """The same, no node much busier than the mean, and what stays in each more even; `limit` of
        a GPU's load."""
        for _ in range(EVENINGS):
            stays = (self.saved * self.held(*self.placed())).sum(axis=0)
            self.worth *= np.sqrt(stays.mean() / np.maximum(stays, 1e-9))
            self.worth = np.clip(self.worth, 1 / MOST_WORTH, MOST_WORTH)
        for _ in range(TRIES):
            expert, node = self._exchanged(*self.placed(), limit)
            if not self._relieve(expert, node):
                break
        return expert, node

    def held(self, expert: Ints, node: Ints) -> Floats:
        """[E, N]: 1 where the node holds the expert."""
        found = np.zeros(self.saved.shape)
        found[expert, node] = 1
        return found

    def busy(self, expert: Ints, node: Ints) -> Floats:
        """[P]: load of each replica, nearest first."""
        load: Floats = (self.saved + self._remote(self.held(expert, node))[:, None])[expert, node]
        return np.round(load, DIGITS)

    def _remote(self, held: Floats) -> Floats:
        """[E]: what each replica serves of the nodes without one."""
        remote = (self.saved * (1 - held)).sum(axis=1) / held.sum(axis=1)
        return np.asarray(remote)

    def _gain(self) -> Floats:
        valued = self.saved * self.worth
        return np.where(self.barred, -valued.max(), valued)

    def _replicas(self) -> Ints:
        """[E]: replicas, first for load, then where one more saves most."""
        nodes = self.topology.nodes
        copies, total = self.least.copy(), self.saved.sum(axis=1)
        order = -np.sort(-np.where(self.barred, 0, self.saved * self.worth), axis=1)
        rows = np.arange(len(total))
        for _ in range(self.redundant - int(copies.sum()) + len(copies)):
            each = np.round(total / copies, DIGITS)
            worth = np.where(each > HEAVY, 1e6 * each, order[rows, np.minimum(copies, nodes - 1)])
            worth[copies >= nodes] = -1
            copies[worth.argmax()] += 1
        return copies

    def _exchanged(self, expert: Ints, node: Ints, limit: float) -> tuple[Ints, Ints]:
        gain = self._gain()[expert]
        gain /= np.abs(gain).mean()
        several = np.flatnonzero(self.held(expert, node).sum(axis=1)[expert] > 1)
        spared = self._spared(expert, node)
        highest = 1 + max(0.0, limit - 1) / STRICTER + spared.mean()
        for price, pin in PASSES:
            weight = self.busy(expert, node) / self.topology.gpus_per_node
            worth = gain.astype(np.float32)
            if pin:
                worth[several, node[several]] += PINNED
            problem = Layer(
                expert, weight.astype(np.float32), self.topology.nodes, highest, already=spared
            )
            node = improve(problem, worth, node, price, ROUNDS)
        return expert, node

    def _spared(self, expert: Ints, node: Ints) -> Floats:
        """[N]: load that a node is spared, of the mean node's, for what it serves of other nodes'
        tokens above the mean."""
        stays = (self.saved * self.held(expert, node)).sum(axis=0) / self.topology.gpus_per_node
        result: Floats = np.round(np.clip(stays.mean() - stays, 0, SPARED), DIGITS)
        return result

    def _relieve(self, expert: Ints, node: Ints) -> bool:
        """Ask for more replicas of what is too heavy, or bar it; whether there was any."""
        held, load = self.held(expert, node), self.busy(expert, node)
        spare = self._remote(held)
        found = False
        for place in np.flatnonzero((load > HEAVY) | (spare[expert] > FAR)).tolist():
            which = int(expert[place])
            replicas = int(held[which].sum())
            more = replicas + 1 - int(self.least[which])
            room = self.redundant - int(self.least.sum()) + len(self.least)
            if spare[which] > SPARE and replicas < self.topology.nodes and 0 < more <= room:
                found = True
                self.least[which] += more
            elif load[place] > HEAVY and self.barred[which].sum() < self.topology.nodes - replicas:
                found |= not self.barred[which, node[place]]
                self.barred[which, node[place]] = True
        return found
