"""Waves that were measured, on disk, so that an interrupted calibration goes on where it was.

One file a wave, and one with the affinity of all waves so far. A file is there whole or not at
all; what a killed run left half-done is measured again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.bounded_files import read_json
from toolkit.profile import tally
from toolkit.profile_folder.errors import ProfileError

if TYPE_CHECKING:
    import numpy as np

PHASES = ("prefill", "decode")


@dataclass
class Shard:
    """One wave of n requests, or all of them joined; shapes as in `toolkit.profile_folder.schema`.

    `indices` [n] of the prompts, `token_owner` [t] the prompt of each sampled token, `loads`
    [n, 5] seconds by output token and the mean batch loads F_1..F_4, `columns` names of steps'.
    """

    indices: np.ndarray
    prefill_counts: np.ndarray
    decode_counts: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    token_owner: np.ndarray
    tokens: np.ndarray
    steps: np.ndarray
    columns: np.ndarray
    transfers: np.ndarray
    loads: np.ndarray


def refuse_other(folder: Path, meta: dict[str, Any]) -> None:
    """Raise ProfileError when the folder holds an unfinished run that differs in these keys."""
    try:
        before = read_json(folder / "run.json")
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise ProfileError(f"cannot read {folder}: {error}; choose another --out") from error
    if not isinstance(before, dict):
        raise ProfileError(f"{folder}/run.json is no mapping; choose another --out")
    differs = sorted(key for key, value in meta.items() if before.get(key) != value)
    if differs:
        raise ProfileError(
            f"{folder} holds an unfinished calibration with other {', '.join(differs)}: "
            "finish it with the same options, or remove it (--restart does)"
        )


class Shards:
    """The folder `<profile>.measuring`. A run with another `meta` than it holds is refused."""

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder = folder
        self.affinity: dict[str, Any] = {}
        self.layers: list[int] = []
        path = folder / "run.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                refuse_other(folder, meta)
            else:
                _replace(path, json.dumps(meta, indent=1).encode())
        except OSError as error:
            raise ProfileError(
                f"cannot write to {folder}: {error}; choose another --out"
            ) from error
        self.done = self._count()
        self._load_affinity()

    def _count(self) -> int:
        # Sums are written after their wave and name it: without them a wave does not count.
        sums = sorted(self.folder.glob("sums-*.npz"))
        return int(sums[-1].stem.split("-")[1]) + 1 if sums else 0

    def _wave(self, number: int) -> Path:
        return self.folder / f"wave-{number:05d}.npz"

    def _sum(self, number: int) -> Path:
        return self.folder / f"sums-{number:05d}.npz"

    def _load_affinity(self) -> None:
        import numpy as np

        if self.done:
            with np.load(self._sum(self.done - 1)) as data:
                self.affinity = {name: data[name] for name in PHASES}
                self.layers = data["layers"].tolist()

    def expect_layers(self, layers: list[int]) -> None:
        """Every wave must have captured the same layers."""
        if self.layers and self.layers != layers:
            raise ProfileError(f"captured layers changed from {self.layers} to {layers}")
        self.layers = layers

    def add_affinity(self, phase: str, ids: np.ndarray, experts: int) -> None:
        """Count a request's consecutive-layer pairs; on disk with the next `add`."""
        import numpy as np

        for name in PHASES:
            if name not in self.affinity:
                shape = (max(0, len(self.layers) - 1), experts, experts)
                self.affinity[name] = np.zeros(shape, dtype=np.int64)
        tally.add_affinity(self.affinity[phase], ids)

    def add(self, shard: Shard) -> None:
        """Keep one more wave. It writes up to a hundred MiB: not for an event loop."""
        import numpy as np

        number = self.done
        data = {field.name: getattr(shard, field.name) for field in fields(Shard)}
        _save(self._wave(number), data)
        empty = np.zeros((0, 0, 0), dtype=np.int64)
        sums = {name: self.affinity.get(name, empty) for name in PHASES}
        # To pack the sums of a large model takes seconds of each wave, and saves disk for minutes.
        sums["layers"] = np.array(self.layers)
        _save(self._sum(number), sums, packed=False)
        if number:
            self._sum(number - 1).unlink(missing_ok=True)
        self.done = number + 1

    def join(self) -> Shard:
        """All waves as one, in the order in which they ran."""
        import numpy as np

        waves: list[Shard] = []
        for number in range(self.done):
            with np.load(self._wave(number)) as data:
                waves.append(Shard(**{field.name: data[field.name] for field in fields(Shard)}))
        return joined(waves)

    def remove(self) -> None:
        """The profile is written: the waves are not needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)


def joined(shards: Sequence[Shard]) -> Shard:
    """Several ones as one, in their order."""
    import numpy as np

    parts = {field.name: [getattr(e, field.name) for e in shards] for field in fields(Shard)}
    whole = {
        name: values[0] if name == "columns" else np.concatenate(values)
        for name, values in parts.items()
    }
    return Shard(**whole)


def _save(path: Path, data: dict[str, Any], packed: bool = True) -> None:
    import io

    import numpy as np

    buffer = io.BytesIO()
    save = np.savez_compressed if packed else np.savez
    save(buffer, **data)
    try:
        _replace(path, buffer.getbuffer())
    except OSError as error:
        raise ProfileError(f"cannot write {path}: {error}") from error


def _replace(path: Path, content: bytes | memoryview) -> None:
    part = path.with_suffix(".part")
    with part.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)
