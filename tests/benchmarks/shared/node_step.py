"""A decode step of DeepSeek-V3's shape on H800s, its all-to-all charged to the slowest rank.

Sums of kernels at their published speeds, MoE layers only: attention (FlashMLA: 660 TFLOPS, 3,000
GB/s) on the rank with most requests, KV_TOKENS each; projections and shared expert (FP8 weights at
HBM_BYTES_S, DeepGEMM's memory-bound figure) ; routed experts on the GPU that has most to do;
dispatch and combine from DeepEP's table (`toolkit/simulate/costs/links.py`). REST is what these
miss of a measured step: LMSYS report 22,282 tokens/s a node of 8 H100 in decode (EP 72, 256
requests a GPU, 2,000 tokens, two-batch overlap), 92 ms a step, of which the sum explains 59.
Two-batch overlap: twice the longer of computing and communicating half a batch.
"""

import numpy as np

from toolkit.placement import Placement, Topology, sent
from toolkit.simulate.costs.links import Links, deepep

KV_TOKENS = 4096
HBM_BYTES_S = 2.7e12
FP8_FLOPS_S = 1.2e15
ATTENTION_S = max(KV_TOKENS * 576 * 2 / 3e12, 2 * 128 * (576 + 512) * KV_TOKENS / 660e12)
"""Of one request in one layer."""
PROJECTIONS, EXPERT = 187e6, 3 * 7168 * 2048
"""Weights of a layer's attention, and of one expert (the shared one is as large)."""
REST_S = 280e-6
"""Of one layer, and one batch."""


def step_s(
    placement: Placement,
    topology: Topology,
    ids: np.ndarray,
    home: np.ndarray,
    *,
    overlap: bool,
    rest_s: float = REST_S,
    links: Links | None = None,
    level: bool = False,
) -> float:
    """Seconds for tokens [T, L, k] at home on ranks [T], one of each request; `level`: if every
    rank sent and received as much as all do on average."""
    found = sent(placement, topology, ids, home)
    parts = 2 if overlap else 1
    requests = np.bincount(home, minlength=topology.gpus).max() / parts
    computed = requests * ATTENTION_S + _weights_s(PROJECTIONS, requests) + rest_s
    computed += _weights_s(EXPERT, requests)
    pairs = found.load.max(axis=1) / parts
    experts = np.maximum(placement.slots * EXPERT / HBM_BYTES_S, 2 * EXPERT * pairs / FP8_FLOPS_S)
    copies = [each / parts for each in (found.sent, found.received)]
    if level:
        copies = [np.broadcast_to(each.mean(axis=1, keepdims=True), each.shape) for each in copies]
    moved = (links or deepep()).seconds(*copies)
    layers = computed + experts
    each = 2 * np.maximum(layers, moved) if overlap else layers + moved
    return float(each.sum())


def _weights_s(weights: float, requests: float) -> float:
    """A matrix of so many weights times a batch."""
    return max(weights / HBM_BYTES_S, 2 * weights * requests / FP8_FLOPS_S)
