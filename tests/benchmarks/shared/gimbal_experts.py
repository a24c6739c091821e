"""Qwen3-30B-A3B's experts on two A100: where placements lay them, and what a step then takes.

Routing is synthetic (`tests/synthetic_routing.py`, 48 layers x 128 experts, top 8), as
specialised as ELDR reports. Placements are fitted to one half of the requests; simulated ones
follow the other half. Gimbal fits anew every 3,000 steps; this traffic stays as it is, so that one
fit is as good.
"""

from typing import NamedTuple

import numpy as np

from tests.benchmarks.shared.node_arms import counted
from tests.benchmarks.shared.simulated import QWEN3_30B
from tests.benchmarks.shared.specialised import specialised
from tests.synthetic_routing import Recipe, token_ids
from toolkit.placement import Placement, Topology, Traffic, count, from_gpus, place, sent
from toolkit.simulate.costs.linear import Decode, Linear, Prefill
from toolkit.simulate.costs.links import Links, deepep
from toolkit.simulate.experts import SimulatedExperts

GPUS = Topology(2, 2)
LAYERS, EXPERTS, TOP, HIDDEN = 48, 128, 8, 2048
REQUESTS, TOKENS = 150, 64
"""Of each half, and decode tokens of each request."""
SPECIALISED = 0.785
BYTES_S, FLOPS_S = 0.7 * 2e12, 0.4 * 312e12
"""What an A100 of 80 GB has of its data sheet's."""
OTHER_BYTES = 3e9
"""Of 61 GB of weights those that are no expert's: each rank has them all."""
EXPERT_FLOPS = 2 * LAYERS * TOP * 3 * HIDDEN * 768
"""Of a token in its experts."""
LINEAR, WORST, EVEN = "linear", "worst", "even"
"""SGLang's and vLLM's order; the busier half of each layer's experts on one GPU; and no placement,
but what none can be better than."""
FITTED = (LINEAR, "gimbal", "eplb")


class Laid(NamedTuple):
    """Experts where they lie, and costs. `pairs`: (token, expert) pairs of the busiest GPU / mean,
    mean of layers; `across`: the share of pairs that leaves the token's own GPU."""

    experts: SimulatedExperts
    cost: Linear
    pairs: float
    across: float


def links() -> Links:
    """DeepEP's table, at this model's width: an H800's NVLink, of 200 GB/s each way (A100: 300)."""
    return deepep().model_copy(update={"hidden": HIDDEN})


def laid(seed: int, zipf: float = 0.6) -> dict[str, Laid]:
    """By kind of placement, of one router and its text, both drawn by the seed; `zipf`: the largest
    exponent of a layer's popularity (`Recipe.zipf`)."""
    recipe = Recipe(layers=LAYERS, experts=EXPERTS, top_k=TOP, document=TOKENS, zipf=zipf)
    recipe = specialised(recipe, SPECIALISED)
    ids = token_ids(2 * REQUESTS * TOKENS, recipe, seed)
    seen, unseen = np.split(ids, 2)
    owner = np.repeat(np.arange(REQUESTS), TOKENS)
    experts = SimulatedExperts(counted(unseen, owner, REQUESTS, EXPERTS), np.full(REQUESTS, TOKENS))
    traffic = count(seen, EXPERTS, windows=1)
    placements = {kind: place(kind, traffic, GPUS) for kind in FITTED} | {WORST: worst(traffic)}
    found = {kind: _of(each, experts, unseen) for kind, each in placements.items()}
    # Half of each layer's experts on each GPU, whichever a batch wakes, and nothing sent.
    return found | {EVEN: Laid(experts, _cost(1.0, 0.0, None), 1.0, 0.0)}


def worst(traffic: Traffic) -> Placement:
    """The busier half of each layer's experts on one GPU."""
    order = np.argsort(-traffic.load, axis=1, kind="stable")
    gpu = np.arange(traffic.experts) * GPUS.gpus // traffic.experts
    return from_gpus(np.tile(gpu, (traffic.layers, 1)), order, traffic.experts, GPUS.gpus)


def _of(placement: Placement, experts: SimulatedExperts, unseen: np.ndarray) -> Laid:
    """Tokens lie on both ranks in turn: requests are not sent by their experts."""
    found = sent(placement, GPUS, unseen, np.arange(len(unseen)) % GPUS.gpus, dispatch="random")
    pairs = float((found.load.max(axis=1) / found.load.mean(axis=1)).mean())
    moved = links().seconds(found.sent, found.received).sum() - _bases(links())
    per_token = float(moved) / (len(unseen) / GPUS.gpus)
    return Laid(
        experts.placed(placement),
        _cost(pairs, per_token, links()),
        pairs,
        1.0 - float(found.shares[0]),
    )


def _cost(pairs: float, moved_s: float, known: Links | None) -> Linear:
    """Weights that a step reads, once; of a prompt's work that of experts waits for the busiest
    GPU, and each token's copies take `moved_s`. `even`: an expert is half on each GPU."""
    expert_s = QWEN3_30B.expert_bytes / (LAYERS * EXPERTS) / BYTES_S
    other, idle = OTHER_BYTES / BYTES_S, _bases(links())
    work = QWEN3_30B.flops + EXPERT_FLOPS * (pairs - 1)
    whole = other + QWEN3_30B.expert_bytes / GPUS.gpus / BYTES_S + idle
    return Linear(
        decode=Decode(
            base=other + (0.0 if known else idle),
            per_kv_token=QWEN3_30B.kv_bytes / BYTES_S,
            per_distinct=expert_s if known else expert_s / GPUS.gpus,
        ),
        prefill=Prefill(base=whole, per_token=work / FLOPS_S + moved_s),
        links=known,
    )


def _bases(known: Links) -> float:
    """All layers' dispatches and combines of nothing."""
    return LAYERS * (known.dispatch.base + known.combine.base)
