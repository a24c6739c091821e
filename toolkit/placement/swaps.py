"""Swaps inside one layer: lower the traffic's cost while every GPU stays below a load limit.

Given where the neighbouring layers' experts lie, the traffic that is saved by replica p on GPU g
is a number `gain[p, g]`, whatever the other replicas of the layer do. Exchanging two replicas
changes the load of two GPUs, so the value of all P x P exchanges is a few matrix operations. Each
round takes the best exchanges on GPUs that no better one of the round touches, and only the rows
of those GPUs are worked out again.

value = gained traffic - price * (load above the limit, after - before)
        - TWIN * (pairs of replicas of one expert that share a GPU, after - before)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

TWIN = 1e3
"""Price of a replica beside its twin, in units of the mean gain: never worth it."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer's replicas. Loads are in units of a GPU's mean load.

    expert, weight [P]; limit, floor: the highest and the lowest load of a GPU; already [G]: what
    counts as its load besides its replicas'. spread [W, P]: how
    each replica's load differs from its mean in each window, scaled so that the squared sum over W
    is the variance that unseen traffic may show; whole numbers of `step`, few enough bits for sums
    of their products to be exact. caution (b) prices it: a GPU also has to keep
    load + b / 2 * variance <= risk_limit.
    """

    expert: Ints
    weight: Floats
    gpus: int
    limit: float
    floor: float = 0.0
    already: Doubles | None = None
    spread: Doubles | None = None
    step: float = 1.0
    caution: float = 0.0
    risk_limit: float = np.inf

    def loads(self, gpu: Ints) -> NDArray[np.float64]:
        """[G]: load of each GPU."""
        loads: NDArray[np.float64] = np.bincount(gpu, self.weight, self.gpus).astype(np.float64)
        return loads if self.already is None else loads + self.already

    def sways(self, gpu: Ints) -> Doubles:
        """[W, G]: how each GPU's load differs from its mean in each window, in steps."""
        assert self.spread is not None
        place = np.zeros((len(gpu), self.gpus))
        place[np.arange(len(gpu)), gpu] = 1
        sways: Doubles = self.spread @ place
        return sways

    def fits(self, gpu: Ints) -> bool:
        """Whether every GPU is within the limits and no two replicas of an expert share one."""
        pairs, loads = self.expert * self.gpus + gpu, self.loads(gpu)
        within = loads.max() <= self.limit + 1e-6 and loads.min() >= self.floor - 1e-6
        return bool(within) and len(np.unique(pairs)) == len(pairs)


class Exchange:
    """The value of all exchanges of one layer, kept up to date while they are made."""

    def __init__(self, layer: Layer, gain: Floats, gpu: Ints, price: float) -> None:
        self.layer, self.gpu, self.price = layer, gpu.copy(), np.float32(price)
        physical = len(gpu)
        every = np.arange(physical)
        self.load = layer.loads(gpu).astype(np.float32)
        held = np.zeros((int(layer.expert.max()) + 1, layer.gpus), np.float32)
        np.add.at(held, (layer.expert, gpu), 1)
        twins = held[layer.expert]
        twins[every, gpu] -= 1  # no replica is its own twin
        self.worth: Floats = gain - TWIN * twins
        if layer.spread is not None:
            self.sway = layer.sways(gpu)
            gram = layer.spread.T @ layer.spread
            own = gram.diagonal()
            self.risk_of = layer.caution * layer.step**2
            """Of a squared step."""
            apart = (own + own[:, None] - 2 * gram) * (self.risk_of / 2)
            self.apart: Floats = apart.astype(np.float32)
        self.value: Floats = self._rows(every)

    def _rows(self, rows: Ints) -> Floats:
        """[R, P]: value of exchanging each of `rows` with each replica."""
        layer, gpu = self.layer, self.gpu
        mine = gpu[rows]
        value = _crossed(self.worth, rows, gpu)
        shift = layer.weight - layer.weight[rows][:, None]
        here, there = shift + self.load[mine][:, None], self.load[gpu] - shift
        excess = _above(here, layer.limit) + _above(there, layer.limit)
        before = _above(self.load, layer.limit)
        if layer.floor > 0:
            excess += _above(-here, -layer.floor) + _above(-there, -layer.floor)
            before += _above(-self.load, -layer.floor)
        if layer.spread is not None:
            before += self._add_risk(excess, rows)
        excess -= before[gpu]
        excess -= before[mine][:, None]
        excess *= self.price
        value -= excess
        value[mine[:, None] == gpu] = 0
        value[layer.expert[rows][:, None] == layer.expert] = 0
        return value

    def _add_risk(self, excess: Floats, rows: Ints) -> Floats:
        """Add to `excess` [R, P] what is above the risk limit after; gives [G], what is before.

        Let u = load + b / 2 * |y|^2 be a GPU's risk, y [W] its spread. Exchanging p on GPU g for q
        changes u by c[q, g] - c[p, g] + b / 2 * |x_q - x_p|^2, with c[p, g] = w_p + b * x_p . y_g.
        """
        layer, gpu = self.layer, self.gpu
        assert layer.spread is not None
        mine = gpu[rows]
        variance = (self.sway * self.sway).sum(axis=0) * (self.risk_of / 2)
        risk = (self.load + variance).astype(np.float32)
        moves = (layer.spread.T @ self.sway) * self.risk_of
        push = (layer.weight[:, None] + moves).astype(np.float32)
        stay = push[np.arange(len(gpu)), gpu]
        apart = self.apart[rows]
        here = push[:, mine].T + apart
        here += (risk[mine] - stay[rows])[:, None]
        excess += _above(here, layer.risk_limit)
        there = push[rows][:, gpu] + apart
        there += risk[gpu] - stay
        excess += _above(there, layer.risk_limit)
        return _above(risk, layer.risk_limit)

    def round(self, least: float) -> int:
        """Make the best exchanges that touch no GPU twice; how many were worth at least `least`."""
        best = self.value.argmax(axis=1)
        worth = self.value[np.arange(len(best)), best]
        touched = np.zeros(self.layer.gpus, bool)
        made = 0
        order = np.flatnonzero(worth > least)
        for first in order[np.argsort(-worth[order], kind="stable")].tolist():
            second = int(best[first])
            one, other = self.gpu[first], self.gpu[second]
            if touched[one] or touched[other]:
                continue
            touched[one] = touched[other] = True
            self._move(first, one, other)
            self._move(second, other, one)
            made += 1
        if made:
            rows = np.flatnonzero(touched[self.gpu])
            block = self._rows(rows)
            self.value[rows] = block
            self.value[:, rows] = block.T
        return made

    def _move(self, item: int, old: int, new: int) -> None:
        layer = self.layer
        self.gpu[item] = new
        self.load[old] -= layer.weight[item]
        self.load[new] += layer.weight[item]
        if layer.spread is not None:
            self.sway[:, old] -= layer.spread[:, item]
            self.sway[:, new] += layer.spread[:, item]
        twins = np.flatnonzero(layer.expert == layer.expert[item])
        if len(twins) > 1:
            twins = twins[twins != item]
            self.worth[twins, old] += TWIN
            self.worth[twins, new] -= TWIN


def improve(layer: Layer, gain: Floats, gpu: Ints, price: float, rounds: int) -> Ints:
    """GPU of each replica [P] after exchanges from `gpu` [P]; `gain` [P, G] is worth ~1 a replica.

    Ends when no exchange gains anything, or after `rounds`. Deterministic.
    """
    exchange = Exchange(layer, gain, gpu, price)
    for _ in range(rounds):
        if not exchange.round(1e-4):
            break
    return exchange.gpu


def _crossed(worth: Floats, rows: Ints, gpu: Ints) -> Floats:
    """[R, P]: what worth [P, G] gains when each of `rows` and each replica change places."""
    stay = worth[np.arange(len(gpu)), gpu]
    crossed: Floats = worth[rows][:, gpu] + worth[:, gpu[rows]].T
    crossed -= stay
    crossed -= stay[rows][:, None]
    return crossed


def _above(values: Floats, limit: float) -> Floats:
    """How far each value is above the limit."""
    over: Floats = values - np.float32(limit)
    np.maximum(over, 0, out=over)
    return over
