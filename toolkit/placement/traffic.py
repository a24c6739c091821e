"""What a placement is fitted to: how often experts fire, and which ones follow each other."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

CHUNK = 32_768


@dataclass(frozen=True, eq=False)
class Traffic:
    """Counts over the calibration's tokens, all non-negative and finite.

    load [L, E]: activations of each logical expert at each MoE layer.
    affinity [L-1, E, E]: tokens that used expert j at layer l and k at layer l + 1. It comes from
    top-k sets: a token counts k * k pairs. Gimbal's E_{l,j,k}.
    windows [W, L, E], optional: the same load cut into W consecutive parts of the calibration.
    How far they differ tells which experts become busy together, and how much an average still
    errs; 128 tell it well, 32 let `joint` fit their noise. Shuffle whole requests before cutting:
    a file sorted by language would pass for a workload that changes its language.
    groups, optional: the router's expert groups (`n_group` in the model's config). Only
    SGLang's hierarchical EPLB uses them.

    Raises ValueError for dense models, wrong shapes, NaN, negative counts, layers that never fire.
    """

    load: Floats
    affinity: Floats
    windows: Floats | None = None
    groups: int | None = None

    def __post_init__(self) -> None:
        load = _counts(self.load, "load", 2)
        layers, experts = load.shape
        if layers == 0 or experts <= 1:
            raise ValueError(
                f"load has {layers} MoE layers of {experts} experts: a dense model has nothing to "
                "place; profile a mixture-of-experts model"
            )
        silent = np.flatnonzero(load.sum(axis=1) == 0)
        if len(silent):
            raise ValueError(
                f"no expert ever fires at MoE layer {', '.join(map(str, silent))}: calibrate with "
                "more tokens, or leave layers without experts out"
            )
        affinity = _counts(self.affinity, "affinity", 3)
        if affinity.shape != (layers - 1, experts, experts):
            raise ValueError(
                f"affinity has shape {affinity.shape}, but {layers} layers of {experts} experts "
                f"need {(layers - 1, experts, experts)}"
            )
        object.__setattr__(self, "load", load)
        object.__setattr__(self, "affinity", affinity)
        if self.windows is not None:
            windows = _counts(self.windows, "windows", 3)
            if len(windows) < 2 or windows.shape[1:] != load.shape:
                raise ValueError(
                    f"windows has shape {windows.shape}; it needs (2 or more, {layers}, {experts})"
                )
            object.__setattr__(self, "windows", windows)
        if self.groups is not None and (self.groups < 1 or experts % self.groups):
            raise ValueError(
                f"{experts} experts do not form {self.groups} groups; give the model's own n_group"
            )

    @property
    def layers(self) -> int:
        """MoE layers."""
        return int(self.load.shape[0])

    @property
    def experts(self) -> int:
        """Logical experts of a layer."""
        return int(self.load.shape[1])


def count(
    ids: ArrayLike, experts: int, *, windows: int = 128, groups: int | None = None
) -> Traffic:
    """Traffic of tokens' expert ids [T, L, k] (logical ids, k distinct ones a token and layer).

    `windows` consecutive parts of the tokens give `Traffic.windows`, fewer where tokens are few;
    1 leaves it out.
    Raises ValueError for other shapes, no tokens, and ids outside 0 .. experts - 1.
    """
    array = np.asarray(ids)
    if array.ndim != 3 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"ids have shape {array.shape} and type {array.dtype}; integers [tokens, layers, "
            "top_k] are needed"
        )
    tokens, layers, k = array.shape
    if tokens == 0 or k == 0:
        raise ValueError(f"ids of {tokens} tokens with {k} experts each: nothing was routed")
    if array.size and not 0 <= array.min() <= array.max() < experts:
        raise ValueError(
            f"ids run from {array.min()} to {array.max()}, but the layers have {experts} experts; "
            "give logical ids and the model's number of experts"
        )
    parts = min(windows, tokens)
    load = np.zeros((max(parts, 1), layers, experts))
    edges = np.linspace(0, tokens, len(load) + 1).astype(int)
    affinity = np.zeros((max(layers - 1, 0), experts, experts))
    for layer in range(layers):
        here = array[:, layer].astype(np.intp)
        for part in range(len(load)):
            rows = here[edges[part] : edges[part + 1]]
            load[part, layer] = np.bincount(rows.ravel(), minlength=experts)
        # Some tokens at a time: the pairs of all would take k * k * 8 bytes a token.
        for start in range(0, tokens if layer + 1 < layers else 0, CHUNK):
            after = array[start : start + CHUNK, layer + 1].astype(np.intp)
            pairs = here[start : start + CHUNK, :, None] * experts + after[:, None, :]
            found = np.bincount(pairs.ravel(), minlength=experts**2)
            affinity[layer] += found.reshape(experts, experts)
    return Traffic(load.sum(axis=0), affinity, load if parts > 1 else None, groups)


def _counts(values: ArrayLike, name: str, dimensions: int) -> Floats:
    """A read-only float64 copy of finite, non-negative counts; ValueError names what is wrong."""
    array: Floats = np.array(values, np.float64)
    if array.ndim != dimensions:
        raise ValueError(f"{name} has {array.ndim} dimensions, not {dimensions}")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name}{list(where)} is {array[where]}; counts must be finite")
    if (array < 0).any():
        where = tuple(int(i) for i in np.argwhere(array < 0)[0])
        raise ValueError(f"{name}{list(where)} is {array[where]}; counts cannot be negative")
    array.flags.writeable = False
    return array
