"""What each array of a profile must look like, as `schema` describes it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.profile_folder.schema import Profile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPES = {
    "prefill_counts": "int32",
    "decode_counts": "int32",
    "prompt_tokens": "int32",
    "output_tokens": "int32",
    "held_out": "uint8",
    "affinity_prefill": "int64",
    "affinity_decode": "int64",
    "tokens_fit": "int16",
    "tokens_held_out": "int16",
    "idf": "float32",
    "centroids": "float32",
    "cluster": "int32",
    "steps": "float32",
    "transfers": "float64",
}
_OPTIONAL = ("steps", "transfers")


def expected(profile: Profile) -> dict[str, tuple[str, tuple[int | None, ...]]]:
    """name -> (dtype, shape) of every array; None where any length will do (T, M, R)."""
    n, layers = len(profile.requests), len(profile.model.layers)
    experts, k = profile.model.experts, profile.model.top_k
    counts, pairs = (n, layers, experts), (max(0, layers - 1), experts, experts)
    shapes: dict[str, tuple[int | None, ...]] = {
        "prefill_counts": counts,
        "decode_counts": counts,
        "prompt_tokens": (n,),
        "output_tokens": (n,),
        "held_out": (n,),
        "affinity_prefill": pairs,
        "affinity_decode": pairs,
        "tokens_fit": (None, layers, k),
        "tokens_held_out": (None, layers, k),
        "idf": (layers, experts),
        "centroids": (profile.centroids.k, experts * len(profile.rho.mask)),
        "cluster": (n,),
        "steps": (None, len(profile.steps_columns) + layers),
        "transfers": (None, 4),
    }
    result = {name: (_DTYPES[name], shape) for name, shape in shapes.items()}
    for placed in profile.placements:
        result[f"placement_{placed.kind}"] = ("int32", (layers, experts + placed.redundant))
    return result


def figure_problems(profile: Profile) -> list[str]:
    """Figures of profile.json that disagree with each other in number or range."""
    layers, k = len(profile.model.layers), profile.centroids.k
    activations, rho = profile.activations, profile.rho
    lengths = {
        "activations.imbalance_prefill": (len(activations.imbalance_prefill), layers, "MoE layers"),
        "activations.imbalance_decode": (len(activations.imbalance_decode), layers, "MoE layers"),
        "activations.idle_prefill": (len(activations.idle_prefill), layers, "MoE layers"),
        "activations.idle_decode": (len(activations.idle_decode), layers, "MoE layers"),
        "correlation.by_layer": (len(profile.correlation.by_layer), layers, "MoE layers"),
        "centroids.sizes": (len(profile.centroids.sizes), k, "clusters"),
        "requests": (len(profile.requests), profile.data.requests, "requests in `data`"),
    }
    problems = [
        f"`{name}` has {found} entries for {wanted} {what}"
        for name, (found, wanted, what) in lengths.items()
        if found != wanted
    ]
    if not set(rho.mask) <= set(range(layers)) or len(set(rho.mask)) != len(rho.mask):
        problems.append(f"`rho.mask` must hold different layers from 0 to {layers - 1}")
    if len(rho.curve) not in (len(rho.mask), len(rho.mask) + 1):
        problems.append(
            f"`rho.curve` has {len(rho.curve)} entries for {len(rho.mask)} layers in the mask"
        )
    for name in ("qoe", "distinct", "without_distinct", "prefill"):
        fit = getattr(profile.latency, name)
        if fit and not len(fit.terms) == len(fit.coefficients) == len(fit.units):
            problems.append(f"`latency.{name}` has not one coefficient and one unit for each term")
    kinds = [placed.kind for placed in profile.placements]
    if len(set(kinds)) != len(kinds):
        problems.append("`placements` holds one kind twice; each kind has one array")
    for placed in profile.placements:
        if placed.gpus < 1 or (profile.model.experts + placed.redundant) % placed.gpus:
            problems.append(
                f"the {placed.kind} placement's {profile.model.experts} + {placed.redundant} "
                f"experts do not divide over {placed.gpus} GPUs"
            )
    return problems


def array_problems(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Arrays that are missing, unknown, of another type or shape, or out of range."""
    wanted = expected(profile)
    problems = []
    for name, (dtype, shape) in wanted.items():
        if name not in arrays:
            if name not in _OPTIONAL:
                problems.append(f"array `{name}` is missing")
            continue
        found = arrays[name]
        if str(found.dtype) != dtype:
            problems.append(f"array `{name}` is {found.dtype} where {dtype} is wanted")
        fits = len(shape) == found.ndim and all(
            want in (None, have) for want, have in zip(shape, found.shape, strict=True)
        )
        if not fits:
            problems.append(
                f"array `{name}` is {_text(found.shape)} where the figures in profile.json "
                f"ask for {_text(shape)}"
            )
    for name in arrays:
        if name not in wanted:
            near = difflib.get_close_matches(name, wanted, n=1, cutoff=0.5)
            hint = f": did you mean `{near[0]}`?" if near else ""
            problems.append(f"unknown array `{name}`{hint}")
    return problems or _values(profile, arrays)


def _values(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Indices that point outside; only asked once types and shapes are right."""
    experts, k = profile.model.experts, profile.centroids.k
    ranges = {"cluster": (-1, k), "held_out": (0, 2)}
    for name in ("tokens_fit", "tokens_held_out", *(n for n in arrays if n[:10] == "placement_")):
        ranges[name] = (0, experts)
    problems = []
    for name, (low, high) in ranges.items():
        found = arrays[name]
        if found.size and (int(found.min()) < low or int(found.max()) >= high):
            problems.append(f"array `{name}` has values outside {low} to {high - 1}")
    return problems


def _text(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if x is None else str(x) for x in shape) + "]"
