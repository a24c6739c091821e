"""Synthetic expert counts with the structure of real ones: domains, Zipf preferences, lengths."""

import numpy as np


def synthetic_counts(
    requests: int,
    layers: int = 48,
    experts: int = 128,
    top_k: int = 8,
    domains: int = 8,
    seed: int = 0,
    model: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Prefill and decode counts [N, L, E] int32, decode tokens [N], the domain of each request.

    Each layer has Zipf-like preferences that all domains share and some of each domain's own; how
    much of the latter differs by layer, from nearly nothing. A request mixes a main domain with a
    little of another and has tastes of its own, most of them kept from prefill to decode.
    Counts are Poisson, cut off at the tokens: 50 to 800 prompt tokens, 100 to 200 decode tokens.
    `seed` draws the requests, `model` what the experts are like.
    """
    fixed = np.random.default_rng([model, 77])
    rng = np.random.default_rng([model, seed])
    ranks = -np.log(np.arange(1, experts + 1))
    steep = fixed.uniform(1.4, 2.4, size=(layers, 1))
    own = fixed.beta(1.2, 1.5, size=(layers, 1))
    common = np.stack([fixed.permutation(ranks) for _ in range(layers)])
    special = np.stack(
        [np.stack([fixed.permutation(ranks) for _ in range(layers)]) for _ in range(domains)]
    )
    domain = rng.choice(domains, size=requests, p=_shares(domains))
    other = rng.integers(domains, size=requests)
    mix = rng.beta(8, 2, size=requests)
    prompts = np.exp(rng.uniform(np.log(50), np.log(800), size=requests)).astype(np.int64)
    tokens = rng.integers(100, 201, size=requests)
    prefill = np.empty((requests, layers, experts), dtype=np.int32)
    decode = np.empty_like(prefill)
    for i in range(requests):
        taste = mix[i] * special[domain[i]] + (1 - mix[i]) * special[other[i]]
        logits = steep * ((1 - own) * common + own * taste)
        logits += rng.normal(scale=0.5, size=logits.shape)
        for counts, length in ((prefill, prompts[i]), (decode, tokens[i])):
            share = np.exp(logits + rng.normal(scale=0.5, size=logits.shape))
            for _ in range(3):  # each time makes up for most of what the last one cut off
                share *= top_k / share.sum(axis=1, keepdims=True)
                np.minimum(share, 0.95, out=share)
            counts[i] = np.minimum(rng.poisson(share * length), length)
    return prefill, decode, tokens, domain


def _shares(domains: int) -> np.ndarray:
    """Popular and rare domains, as in live traffic."""
    weights = 1.0 / np.arange(1, domains + 1) ** 0.7
    return weights / weights.sum()
