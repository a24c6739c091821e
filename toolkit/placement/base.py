"""A placement: which logical expert each physical slot holds, in every MoE layer.

Letters: L MoE layers, E logical experts, P = E + redundant physical slots, G GPUs. Slot p lies on
GPU p // (P / G), as SGLang has it (`eplb/expert_location.py`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toolkit.bounded_files import read_json
from toolkit.placement.topology import Topology

Ints = NDArray[np.int64]
KEY = "physical_to_logical_map"


@dataclass(frozen=True, eq=False)
class Placement:
    """`physical_to_logical` [L, P]: the logical expert in each slot; G = `gpus`.

    Raises ValueError where the map has another shape, misses an expert, or P does not divide by G.
    """

    physical_to_logical: Ints
    experts: int
    gpus: int

    def __post_init__(self) -> None:
        table = np.asarray(self.physical_to_logical)
        if table.ndim != 2 or table.size == 0:
            raise ValueError(
                f"the map has shape {table.shape}; it needs [layers, physical experts]"
            )
        if not np.issubdtype(table.dtype, np.integer):
            raise ValueError(f"the map holds {table.dtype}; it needs whole expert numbers")
        physical = table.shape[1]
        if physical < self.experts:
            raise ValueError(
                f"the map has {physical} slots a layer for {self.experts} experts; it was made for "
                "another model"
            )
        Topology(self.gpus).slots(self.experts, physical - self.experts)
        if table.min() < 0 or table.max() >= self.experts:
            raise ValueError(
                f"the map names experts {table.min()} to {table.max()}, but the model has "
                f"{self.experts}; it was made for another model"
            )
        table = np.array(table, np.int64)
        table.flags.writeable = False
        object.__setattr__(self, "physical_to_logical", table)
        missing = np.argwhere(self.replicas() == 0)
        if len(missing):
            layer, expert = missing[0]
            raise ValueError(
                f"layer {layer} has no slot for expert {expert} ({len(missing)} such in all); "
                "every logical expert needs at least one"
            )

    @property
    def layers(self) -> int:
        """MoE layers."""
        return int(self.physical_to_logical.shape[0])

    @property
    def redundant(self) -> int:
        """Replicas beyond one an expert, in each layer."""
        return int(self.physical_to_logical.shape[1] - self.experts)

    @property
    def slots(self) -> int:
        """Slots of one GPU in one layer, P / G."""
        return int(self.physical_to_logical.shape[1] // self.gpus)

    def replicas(self) -> Ints:
        """[L, E]: in how many slots each expert lies."""
        keys = self.physical_to_logical + self.experts * np.arange(self.layers)[:, None]
        counts = np.bincount(keys.ravel(), minlength=self.layers * self.experts)
        return counts.reshape(self.layers, self.experts)

    def held(self) -> Ints:
        """[L, E, G]: how many replicas of each expert each GPU holds."""
        gpu = np.arange(self.physical_to_logical.shape[1]) // self.slots
        rows = self.physical_to_logical + self.experts * np.arange(self.layers)[:, None]
        cells = np.bincount(
            (rows * self.gpus + gpu).ravel(), minlength=self.layers * self.experts * self.gpus
        )
        return cells.reshape(self.layers, self.experts, self.gpus)

    def twins(self) -> int:
        """Slots that hold an expert which their GPU holds already: they relieve nobody."""
        return int(np.maximum(self.held() - 1, 0).sum())

    def to_sglang(
        self, rows: Sequence[int] | None = None, hidden_layers: int | None = None
    ) -> dict[str, list[list[int]]]:
        """What `--init-expert-location` loads: {"physical_to_logical_map": [[P] * layers]}.

        SGLang counts every hidden layer, dense ones too. For a model that has dense layers, `rows`
        says which hidden layer each MoE layer is and `hidden_layers` how many there are; dense
        layers get SGLang's trivial map, which they never read. Raises ValueError when they do not
        fit together.
        """
        table = self.physical_to_logical
        if rows is None and hidden_layers in (None, self.layers):
            return {KEY: table.tolist()}
        if rows is None or hidden_layers is None:
            raise ValueError(
                f"the placement has {self.layers} MoE layers; give both the hidden layer of each "
                "and the number of hidden layers"
            )
        inside = len(rows) == self.layers and all(0 <= row < hidden_layers for row in rows)
        if not inside or list(rows) != sorted(set(rows)):
            raise ValueError(
                f"{list(rows)} are not {self.layers} rising places among {hidden_layers} layers"
            )
        whole = np.tile(np.arange(table.shape[1]) % self.experts, (hidden_layers, 1))
        whole[list(rows)] = table
        return {KEY: whole.tolist()}

    def save(
        self, path: Path, rows: Sequence[int] | None = None, hidden: int | None = None
    ) -> None:
        """Write `to_sglang(rows, hidden)` as JSON; a killed run leaves the old file or none."""
        part = path.with_name(f".{path.name}.part")
        part.write_text(json.dumps(self.to_sglang(rows, hidden), separators=(",", ":")) + "\n")
        part.replace(path)


def from_sglang(data: Any, experts: int, gpus: int, rows: Sequence[int] | None = None) -> Placement:
    """The placement in what `to_sglang` gave; `rows` picks the hidden layers that have experts.

    Raises ValueError that says what is wrong with the data.
    """
    if not isinstance(data, dict) or KEY not in data:
        known = ", ".join(map(str, data)) if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"no {KEY!r} in the expert location (it has: {known or 'nothing'})")
    table = data[KEY]
    if not isinstance(table, list) or not all(isinstance(row, list) for row in table):
        raise ValueError(f"{KEY} must be a list of layers, each a list of expert numbers")
    lengths = {len(row) for row in table}
    if len(lengths) != 1:
        raise ValueError(
            f"{KEY} has layers of {', '.join(map(str, sorted(lengths))) or 'no'} slots; all layers "
            "need equally many"
        )
    if not all(type(entry) is int for row in table for entry in row):
        raise ValueError(f"{KEY} holds something that is not a whole number")
    if rows is not None:
        if not all(0 <= row < len(table) for row in rows):
            raise ValueError(f"layers {list(rows)} are asked for, but {KEY} has {len(table)}")
        table = [table[row] for row in rows]
    return Placement(np.array(table, np.int64), experts, gpus)


def load_placement(
    path: Path, experts: int, gpus: int, rows: Sequence[int] | None = None
) -> Placement:
    """Read a JSON file that `Placement.save` wrote; ValueError names the file and the fault."""
    try:
        return from_sglang(read_json(path), experts, gpus, rows)
    except ValueError as fault:  # no JSON, or out of bounds, too
        raise ValueError(f"{path}: {fault}") from fault


def from_gpus(gpu: ArrayLike, expert: ArrayLike, experts: int, gpus: int) -> Placement:
    """Placement of items: `gpu` [L, P] says where each lies, `expert` [L, P] which expert it is.

    Within a GPU the slots are ordered by expert, so equal placements are equal arrays.
    """
    where, what = np.asarray(gpu, np.int64), np.asarray(expert, np.int64)
    order = np.argsort(where * experts + what, axis=1, kind="stable")
    table = np.take_along_axis(what, order, axis=1)
    held = np.take_along_axis(where, order, axis=1)
    if (held != np.arange(held.shape[1]) // (held.shape[1] // gpus)).any():
        raise ValueError("the GPUs do not hold equally many experts")
    return Placement(table, experts, gpus)
