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


def wide(nodes: int, seed: int) -> Wide:
    """Router and text drawn by the seed, fitted to one half of the requests."""
    topology = Topology(nodes * 8, 8)
    recipe = specialised(Recipe(layers=LAYERS, document=PROMPT + DECODE), SPECIALISED)
    ids = token_ids(2 * REQUESTS * recipe.document, recipe, seed)
    parts = ids.reshape(2, REQUESTS, recipe.document, LAYERS, -1)
    prefill, decode = (
        [_counts(part[:, tokens]) for part in parts]
        for tokens in (slice(PROMPT), slice(PROMPT, None))
    )
    space = SignatureSpace(idf_weights(prefill[0]), tuple(range(LAYERS)))
    labels = balanced_kmeans(space.signatures(prefill[0]), topology.gpus, seed, restarts=1).labels
    load = np.zeros((topology.gpus, LAYERS, EXPERTS))
    np.add.at(load, labels, decode[0])
    none = np.zeros((LAYERS - 1, EXPERTS, EXPERTS))
    placements = {
        "eplb": eplb(Traffic(load.sum(axis=0), none), topology, REDUNDANT),
        "lay": lay(load, topology, REDUNDANT, seed).placement,
    }
    unplaced = SimulatedExperts(decode[1], np.full(REQUESTS, DECODE), prefill[1], space)
    return Wide({name: unplaced.placed(each) for name, each in placements.items()})


def _counts(ids: np.ndarray) -> np.ndarray:
    """[N, L, E] of ids [N, tokens, L, k]."""
    count, tokens = ids.shape[:2]
    owner = np.repeat(np.arange(count), tokens)
    return counted(ids.reshape(-1, *ids.shape[2:]), owner, count, EXPERTS)


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
