"""Place experts by a profile, judge the placements on tokens that were not fitted."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toolkit import placement
from toolkit.profile_folder.errors import ProfileError
from toolkit.profile_folder.schema import PlacementKind, PlacementResult, Profile

Arrays = dict[str, np.ndarray]
KINDS: tuple[PlacementKind, ...] = ("linear", "eplb", "gimbal", "milp", "joint")
PLAIN: tuple[PlacementKind, ...] = ("gimbal", "milp")
"""The paper has no redundant experts."""
NODES = "nodes"
"""Experts and clusters of requests together (`toolkit.profile.node_traffic`), judged otherwise."""
TIED = "experts tied across layers, as in the paper"
TIME_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class EpConfig:
    """EP size, redundant experts, GPUs a node; `drift` as in `placement.Weights` (`joint` only)."""

    gpus: int
    redundant: int
    gpus_per_node: int
    drift: float = 0.01


def traffic(profile: Profile, arrays: Arrays) -> placement.Traffic:
    """Load and affinity of the fitted requests, prefill and decode together.

    The sampled tokens, in the order in which they ran, give its windows.
    """
    fitted = arrays["held_out"] == 0
    load = sum(arrays[f"{phase}_counts"][fitted].sum(axis=0) for phase in ("prefill", "decode"))
    affinity = arrays["affinity_prefill"] + arrays["affinity_decode"]
    windows = placement.count(arrays["tokens_fit"], profile.model.experts).windows
    if windows is not None:
        windows = windows * (np.sum(load) / windows.sum())
    return placement.Traffic(load, affinity, windows)


def place_all(
    profile: Profile,
    arrays: Arrays,
    layouts: tuple[EpConfig, ...],
    seed: int,
    say: Callable[[str], None],
) -> tuple[Profile, Arrays]:
    """The profile with every kind of placement that each layout allows.

    Raises:
        ProfileError: sizes that do not divide, or tokens that are too few.
    """
    placed: list[PlacementResult] = []
    more: Arrays = {}
    for layout in layouts:
        for kind in KINDS:
            if layout.redundant and kind in PLAIN:
                continue
            say(f"placement: {kind} on {layout.gpus} GPUs + {layout.redundant} redundant")
            row, found = place(profile, arrays, layout, kind, seed, TIME_LIMIT_S)
            if found is None:
                say(f"  left out: {row.note}")
                continue
            placed.append(row)
            more[f"placement_{kind}"] = found.physical_to_logical.astype(np.int32)
    relative = _relative(placed)
    return profile.model_copy(update={"placements": relative}), {**arrays, **more}


def place(
    profile: Profile,
    arrays: Arrays,
    layout: EpConfig,
    kind: PlacementKind,
    seed: int,
    limit: float,
    knobs: str = "",
) -> tuple[PlacementResult, placement.Placement | None]:
    """One placement and its judgement; None (and the reason as the note) where the MILP, which
    only fits small models, cannot be solved. `knobs`: what stands behind the kind's `@`.

    Raises:
        ProfileError: sizes that do not divide, an unknown kind, or knobs that it does not have.
    """
    start, gap, note = time.perf_counter(), None, ""
    try:
        topology = placement.Topology(layout.gpus, layout.gpus_per_node)
        known = traffic(profile, arrays)
        if kind == "milp":
            solved = placement.milp(known, topology, layout.redundant, time_limit=limit)
            found, gap, note = solved.placement, _percent(solved.gap), TIED
        elif kind == "joint":
            weights = placement.Weights(drift=layout.drift)
            found = placement.joint(known, topology, layout.redundant, seed, weights)
        else:
            name = f"{kind}@{knobs}" if knobs else kind
            found = placement.place(name, known, topology, layout.redundant, seed, limit)
    except TimeoutError as error:
        return _empty(layout, kind, str(error)), None
    except ValueError as error:
        if kind != "milp":
            raise ProfileError(str(error)) from error
        return _empty(layout, kind, str(error)), None
    seconds = time.perf_counter() - start
    judgement = placement.judge(found, topology, arrays["tokens_held_out"])
    mean = judgement.summary()
    row = PlacementResult(
        kind=kind,
        gpus=layout.gpus,
        gpus_per_node=layout.gpus_per_node,
        redundant=layout.redundant,
        balance=mean["balance"] or 0.0,
        balance_max=float(judgement.balance.max()),
        gpu_cut=mean["cross_gpu"] or 0.0,
        node_cut=mean["cross_node"] or 0.0,
        fan_out=mean["fan_gpus"] or 0.0,
        step=mean["step"] or 0.0,
        gap=gap,
        seconds=seconds,
        note=note,
    )
    return row, found


def _percent(gap: float | None) -> float | None:
    return None if gap is None or not np.isfinite(gap) else 100 * gap


def _empty(layout: EpConfig, kind: PlacementKind, note: str) -> PlacementResult:
    return PlacementResult(
        kind=kind,
        gpus=layout.gpus,
        gpus_per_node=layout.gpus_per_node,
        redundant=layout.redundant,
        balance=0.0,
        balance_max=0.0,
        gpu_cut=0.0,
        node_cut=0.0,
        fan_out=0.0,
        step=0.0,
        seconds=0.0,
        note=note,
    )


def _relative(placed: list[PlacementResult]) -> tuple[PlacementResult, ...]:
    """Step times as shares of that of `linear` on the same layout."""
    base = {(p.gpus, p.redundant): p.step for p in placed if p.kind == "linear"}
    return tuple(
        p.model_copy(update={"step": p.step / base.get((p.gpus, p.redundant), p.step)})
        for p in placed
    )


def write_placement(
    profile: Profile,
    arrays: Arrays,
    layout: EpConfig,
    kind: str,
    path: Path,
    seed: int,
    limit: float,
) -> PlacementResult:
    """Place experts and write the JSON for --init-expert-location; returns the judgement.

    Raises:
        ProfileError: an unknown kind, sizes that do not fit, or a path that cannot be written.
    """
    name, _, knobs = kind.partition("@")
    chosen = next((known for known in KINDS if known == name), None)
    if chosen is None or (knobs and chosen != "gimbal"):
        raise ProfileError(f"unknown placement {kind!r}; known: {', '.join((*KINDS, NODES))}")
    if layout.redundant and chosen in PLAIN:
        raise ProfileError(f"{kind} has no redundant experts: use joint or eplb")
    row, found = place(profile, arrays, layout, chosen, seed, limit, knobs)
    if found is None:
        raise ProfileError(row.note)
    save(profile, found, path)
    return row


def save(profile: Profile, found: placement.Placement, path: Path) -> None:
    """The JSON for --init-expert-location. ProfileError: it cannot be written."""
    try:
        found.save(path, profile.model.layers, profile.model.hidden_layers)
    except OSError as error:
        raise ProfileError(f"cannot write {path}: {error}") from error
