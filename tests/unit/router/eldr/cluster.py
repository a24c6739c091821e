"""A profile of eight kinds of requests, and a router over stand-ins that uses it.

Kind g of KINDS fires the four experts 4 g .. 4 g + 3 of every layer, and now and then another. The
profile has seen kinds 0 .. 3 only, one for each of four decode workers.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.standin.cluster import Cluster
from tests.standin.signatures import TOKENS
from tests.unit.profile.sample import Size, build
from tests.unit.router.cluster_calls import bodies, post
from toolkit.profile_folder import store
from toolkit.signatures import SignatureSpace, balanced_kmeans, idf_weights

KINDS, EXPERTS, LAYERS, REQUESTS = 8, 32, 4, 120
MASK = (2, 0)
MODEL_LAYERS = (1, 3, 5, 7)
"""Numbers in the model of the profile's layers 0 .. 3: the others are dense."""
RECORDED = "1,5"
FINGERPRINT = "sha256:1"


def counts(kind: int, rng: np.random.Generator, layers: int = 0) -> NDArray[np.int64]:
    """[layers, EXPERTS] of one request of a kind; 0: of the layers that are recorded."""
    layers = layers or len(MASK)
    result = rng.integers(1, 4, (layers, EXPERTS)) * (rng.random((layers, EXPERTS)) < 0.08)
    result[:, 4 * kind : 4 * kind + 4] += rng.integers(10, 30, (layers, 4))
    return result


def write_profile(folder: Path, workers: int = 4, requests: int = REQUESTS) -> str:
    """A profile folder; its centroid k is that of kind k where there are four workers."""
    rng = np.random.default_rng(0)
    size = Size(requests, LAYERS, EXPERTS, top_k=4, workers=workers, gpus=2, nodes=1)
    profile, arrays = build(size)
    kinds = np.arange(requests) % 4
    arrays["prefill_counts"] = np.stack([counts(k, rng, LAYERS) for k in kinds]).astype(np.int32)  # type: ignore[arg-type]
    arrays["prompt_tokens"] = np.full(requests, TOKENS, np.int32)
    held = arrays["held_out"].astype(bool)
    arrays["idf"] = idf_weights(arrays["prefill_counts"][~held]).astype(np.float32)
    space = SignatureSpace(arrays["idf"], MASK)
    signatures = space.signatures(arrays["prefill_counts"])
    clusters = balanced_kmeans(signatures[~held], workers)
    order = np.argsort(
        [np.bincount(kinds[~held][clusters.labels == c]).argmax() for c in range(workers)]
    )
    arrays["centroids"] = clusters.centroids[order]
    arrays["cluster"] = np.full(requests, -1, np.int32)
    arrays["cluster"][~held] = np.argsort(order)[clusters.labels]
    sizes = np.bincount(arrays["cluster"][~held], minlength=workers)
    model = profile.model.model_copy(update={"fingerprint": FINGERPRINT, "layers": MODEL_LAYERS})
    figures = {
        "model": model,
        "rho": profile.rho.model_copy(
            update={"mask": MASK, "curve": (0.5, *[0.6] * (len(MASK) - 1), 0.5)}
        ),
        "data": profile.data.model_copy(update={"prompt_tokens": requests * TOKENS}),
        "centroids": profile.centroids.model_copy(
            update={"sizes": tuple(sizes.tolist()), "bound": int(sizes.max())}
        ),
    }
    store.write(folder, profile.model_copy(update=figures), arrays)
    return str(folder)


def eldr_cluster(profile: str, decodes: int = 4, **options: Any) -> Cluster:
    """One prefill that records what the profile wants, and `decodes` decode workers."""
    config = {"profile": profile, "decode_policy": "eldr", "tau": 0.1} | options.pop("config", {})
    args = {"prefill": ["--signature-layers", RECORDED, "--experts", str(EXPERTS)]}
    args |= options.pop("role_args", {})
    return Cluster(decodes=decodes, role_args=args, config=config, **options)


class Traffic:
    """Sends requests of kinds, and says which worker served them."""

    def __init__(self, cluster: Cluster, seed: int = 1) -> None:
        self.cluster = cluster
        self.rng = np.random.default_rng(seed)

    async def send(self, kind: int | None = None, tokens: int = 2, **fields: Any) -> None:
        if kind is not None:
            fields["standin_counts"] = counts(kind, self.rng).reshape(-1).tolist()
        path = "/v1/completions"
        status, raw = await post(self.cluster, path, bodies(tokens, **fields)[path])
        assert status == 200, raw

    async def many(self, kinds: list[int], at_once: int = 8) -> None:
        gate = asyncio.Semaphore(at_once)

        async def one(kind: int) -> None:
            async with gate:
                await self.send(kind)

        await asyncio.gather(*(one(kind) for kind in kinds))

    async def served_by(self, kind: int, times: int = 3) -> set[str]:
        """The decode workers that serve requests of this kind, sent one after the other."""
        before = await self.completed()
        for _ in range(times):
            await self.send(kind)
        after = await self.completed()
        return {name for name in after if after[name] > before[name]}

    async def completed(self) -> dict[str, int]:
        state = await self.cluster.until(lambda s: not any(w["inflight"] for w in s["workers"]))
        return {w["name"]: w["completed"] for w in state["workers"] if w["role"] == "decode"}


async def admin(cluster: Cluster, path: str, body: Any = None) -> tuple[int, Any]:
    async with cluster.session.post(f"{cluster.admin}/admin/{path}", json=body) as response:
        return response.status, await response.json()


async def metrics(cluster: Cluster) -> dict[str, float]:
    """Samples by name with labels, without the prefix."""
    async with cluster.session.get(cluster.url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.removeprefix("toolkit_router_"): float(value) for name, value in pairs}
