"""One wide-EP decode server of DeepSeek-V3's shape for the queue simulator."""

from typing import NamedTuple

import numpy as np

from tests.benchmarks.shared.node_arms import counted
from tests.benchmarks.shared.node_step import (
    ATTENTION_S,
    EXPERT,
    FP8_FLOPS_S,
    HBM_BYTES_S,
    KV_TOKENS,
    PROJECTIONS,
    REST_S,
)
from tests.benchmarks.shared.specialised import specialised
from tests.synthetic_routing import Recipe, token_ids
from toolkit.placement import Topology, Traffic, eplb, lay
from toolkit.signatures.clusters import balanced_kmeans
from toolkit.signatures.idf import idf_weights
from toolkit.signatures.space import SignatureSpace
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost
from toolkit.simulate.costs.links import Link, Links, Work, deepep
from toolkit.simulate.experts import SimulatedExperts

LAYERS, WHOLE, EXPERTS, REDUNDANT = 15, 58, 256, 32
REQUESTS, PROMPT, DECODE = 1152, 12, 16
"""Of each half, and tokens of each request whose experts are known."""
SPECIALISED = 0.785


class Wide(NamedTuple):
    """Experts by placement (`eplb`, `lay`); rows are the requests that nothing was fitted to."""

    experts: dict[str, SimulatedExperts]


class Drawn(NamedTuple):
    """`unplaced`: requests that nothing is fitted to; of the others the decode counts [N, L, E],
    and those of the requests that each GPU is to decode [G, L, E]."""

    unplaced: SimulatedExperts
    fitted: np.ndarray
    by_gpu: np.ndarray


def drawn(gpus: int, seed: int, experts: int = EXPERTS) -> Drawn:
    """Router and text drawn by the seed; one half of the requests is to be fitted to."""
    recipe = Recipe(layers=LAYERS, experts=experts, document=PROMPT + DECODE)
    recipe = specialised(recipe, SPECIALISED)
    ids = token_ids(2 * REQUESTS * recipe.document, recipe, seed)
    parts = ids.reshape(2, REQUESTS, recipe.document, LAYERS, -1)
    prefill, decode = (
        [_counts(part[:, tokens], experts) for part in parts]
        for tokens in (slice(PROMPT), slice(PROMPT, None))
    )
    space = SignatureSpace(idf_weights(prefill[0]), tuple(range(LAYERS)))
    labels = balanced_kmeans(space.signatures(prefill[0]), gpus, seed, restarts=1).labels
    load = np.zeros((gpus, LAYERS, experts))
    np.add.at(load, labels, decode[0])
    unplaced = SimulatedExperts(decode[1], np.full(REQUESTS, DECODE), prefill[1], space)
    return Drawn(unplaced, decode[0], load)


def wide(nodes: int, seed: int) -> Wide:
    """Placements of `drawn` requests."""
    topology = Topology(nodes * 8, 8)
    unplaced, _, load = drawn(topology.gpus, seed)
    placements = {
        "eplb": eplb(even(load), topology, REDUNDANT),
        "lay": lay(load, topology, REDUNDANT, seed).placement,
    }
    return Wide({name: unplaced.placed(each) for name, each in placements.items()})


def even(fitted: np.ndarray) -> Traffic:
    """Of decode counts [N, L, E]. Tokens come home between two layers, so which expert follows
    which is left out."""
    load = fitted.sum(axis=0).astype(np.float64)
    layers, experts = load.shape
    return Traffic(load, np.zeros((layers - 1, experts, experts)))


def _counts(ids: np.ndarray, experts: int) -> np.ndarray:
    """[N, L, E] of ids [N, tokens, L, k]."""
    count, tokens = ids.shape[:2]
    owner = np.repeat(np.arange(count), tokens)
    return counted(ids.reshape(-1, *ids.shape[2:]), owner, count, experts)


def cost(gpus: int) -> Linear:
    """Seconds of a step on so many H800s; each of LAYERS stands for WHOLE / LAYERS ones."""
    slots = (EXPERTS + REDUNDANT) // gpus
    same = REST_S + (PROJECTIONS + EXPERT) / HBM_BYTES_S  # the shared expert is as large as one
    return Linear(
        decode=Decode(base=WHOLE * same, per_kv_token=WHOLE * ATTENTION_S / KV_TOKENS),
        prefill=Prefill(base=0.001, per_token=0.0),
        transfer=TransferCost(base=0.001),
        links=_scaled(deepep(), WHOLE / LAYERS, slots),
    )


def _scaled(links: Links, by: float, slots: int) -> Links:
    """A layer that takes `by` times as long; a GPU reads `slots` experts of it."""
    work = Work(least=by * slots * EXPERT / HBM_BYTES_S, per_pair=by * 2 * EXPERT / FP8_FLOPS_S)
    return links.model_copy(
        update={
            "dispatch": _longer(links.dispatch, by),
            "combine": _longer(links.combine, by),
            "work": work,
            "replicas": "nearest",
        }
    )


def _longer(link: Link, by: float) -> Link:
    times = {name: getattr(link, name) * by for name in ("base", "per_node_byte", "per_byte")}
    return link.model_copy(update=times)
