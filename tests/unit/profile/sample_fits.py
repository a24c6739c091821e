"""Small stand-ins for the fits, only good enough that a sample profile looks like a real one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.profile_folder import schema


def idf(counts: NDArray[Any]) -> NDArray[Any]:
    """[L, E] from counts [N, L, E]."""
    fired = (counts > 0).sum(0)
    return np.log((len(counts) + 1) / (fired + 1)).astype(np.float32)


def signatures(counts: NDArray[Any], weights: NDArray[Any], mask: tuple[int, ...]) -> NDArray[Any]:
    """[N, len(mask) * E], rows of length 1."""
    flat = (counts[:, mask] * weights[list(mask)]).reshape(len(counts), -1).astype(np.float32)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)


def balanced(
    rng: np.random.Generator, points: NDArray[Any], fit: NDArray[Any], k: int, bound: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """A cluster of at most `bound` for each fitted point (greedy), -1 for others; centroids."""
    chosen = np.flatnonzero(fit)
    centroids = points[rng.choice(chosen, k, replace=False)]
    cluster = np.full(len(points), -1, np.int32)
    for _ in range(6):
        near = points[chosen] @ centroids.T
        left = np.full(k, bound)
        for row in np.argsort(-near.max(1)):
            best = max((c for c in range(k) if left[c]), key=lambda c: near[row, c])
            cluster[chosen[row]] = best
            left[best] -= 1
        centroids = np.stack([points[cluster == c].mean(0) for c in range(k)])
        centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    return cluster, centroids.astype(np.float32)


def uneven(sizes: NDArray[Any]) -> tuple[int, ...]:
    """Sizes of the same sum as ordinary k-means might give them."""
    result = [int(x) for x in sizes]
    for i in range(len(result) - 1):
        moved = result[i + 1] // 2
        result[i] += moved
        result[i + 1] -= moved
    return tuple(result)


def steps(rng: np.random.Generator, layers: int, experts: int, top_k: int) -> NDArray[Any]:
    """[M, 5 + L]: seconds, requests, KV tokens, new tokens, decode, then distinct experts."""
    batch = rng.choice([1, 2, 4, 8, 16, 24, 32], size=1800)
    kv = batch * rng.integers(50, 500, batch.size)
    locality = rng.uniform(0.35, 1.0, batch.size)[:, None] * rng.uniform(0.9, 1.1, (1, layers))
    hit = 1 - (1 - top_k / experts) ** (1 + (batch[:, None] - 1) * locality)
    distinct = np.clip(np.rint(experts * hit), top_k, experts)
    time = 0.004 + 1.4e-4 * batch + 1e-7 * kv + 2.1e-5 * distinct.sum(1) * 6 / layers
    time *= rng.lognormal(0, 0.05, batch.size)
    decode = rng.random(batch.size) < 0.9
    time = np.where(decode, time, time * 7)
    new = np.where(decode, batch, batch * 200)
    return np.column_stack([time, batch, kv, new, decode, distinct]).astype(np.float32)


def placement(use: NDArray[Any], gpus: int, redundant: int, kind: str) -> NDArray[Any]:
    """[L, E + redundant]: in order, or greedily by load with the hottest experts twice."""
    layers, experts = use.shape
    if kind == "linear":
        return np.tile(np.arange(experts, dtype=np.int32), (layers, 1))
    slots = (experts + redundant) // gpus
    result = np.empty((layers, experts + redundant), np.int32)
    for layer in range(layers):
        hot = np.argsort(-use[layer])[:redundant]
        load = use[layer].copy()
        load[hot] /= 2
        filled: list[list[int]] = [[] for _ in range(gpus)]
        weight = np.zeros(gpus)
        for expert in sorted([*range(experts), *hot.tolist()], key=lambda e: -load[e]):
            free = [g for g in range(gpus) if len(filled[g]) < slots]
            best = min(free, key=lambda g: (expert in filled[g], weight[g]))
            filled[best].append(expert)
            weight[best] += load[expert]
        result[layer] = np.concatenate(filled)
    return result


def activations(arrays: dict[str, NDArray[Any]]) -> schema.Activations:
    use = {p: arrays[f"{p}_counts"].sum(0) for p in ("prefill", "decode")}
    peak = {p: tuple(float(x) for x in a.max(1) / a.mean(1)) for p, a in use.items()}
    idle = {p: tuple(int(x) for x in (a == 0).sum(1)) for p, a in use.items()}
    return schema.Activations(
        imbalance_prefill=peak["prefill"],
        imbalance_decode=peak["decode"],
        idle_prefill=idle["prefill"],
        idle_decode=idle["decode"],
    )


def affinity(arrays: dict[str, NDArray[Any]]) -> schema.Affinity:
    def share(pairs: NDArray[Any], part: float) -> float:
        if not len(pairs):
            return 0.0
        flat = np.sort(pairs.reshape(len(pairs), -1).astype(float), axis=1)[:, ::-1]
        top = max(1, round(part * flat.shape[1]))
        return float((flat[:, :top].sum(1) / flat.sum(1)).mean())

    prefill, decode = arrays["affinity_prefill"], arrays["affinity_decode"]
    chance = prefill.sum(2)[:, :, None] * prefill.sum(1)[:, None, :]
    return schema.Affinity(
        top1_prefill=share(prefill, 0.01),
        top10_prefill=share(prefill, 0.1),
        top1_decode=share(decode, 0.01),
        top10_decode=share(decode, 0.1),
        top1_independent=share(chance, 0.01),
        top10_independent=share(chance, 0.1),
    )


def correlation(arrays: dict[str, NDArray[Any]]) -> schema.Correlation:
    prefill, decode = (arrays[f"{p}_counts"].astype(float) for p in ("prefill", "decode"))
    whole = [np.corrcoef(a, b)[0, 1] for a, b in zip(prefill.sum(0), decode.sum(0), strict=True)]
    each = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(prefill, decode, strict=True)]
    return schema.Correlation(
        model=float(np.corrcoef(prefill.sum(0).ravel(), decode.sum(0).ravel())[0, 1]),
        by_layer=tuple(float(x) for x in whole),
        per_request_median=float(np.median(each)),
        per_request_p10=float(np.quantile(each, 0.1)),
        per_request_p90=float(np.quantile(each, 0.9)),
    )
