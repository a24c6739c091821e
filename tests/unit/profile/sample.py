"""A made-up, plausible profile: seeded random numbers with domains, languages and affinity.

`python -m tests.unit.profile.sample OUT.html [big]` writes its report page, to be looked at.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.unit.profile import sample_fits as fits
from toolkit.profile_folder import schema

Arrays = dict[str, NDArray[Any]]
DOMAINS = ("code", "math", "medical", "legal", "general")
LANGUAGES = ("en", "zh", "ru", "fr")


@dataclass(frozen=True)
class Size:
    """N requests, L layers, E experts, top-k, K decode workers, GPUs."""

    requests: int = 240
    layers: int = 6
    experts: int = 48
    top_k: int = 4
    workers: int = 4
    gpus: int = 4
    nodes: int = 2


TINY = Size(requests=12, layers=3, experts=8, top_k=2, workers=2, gpus=2, nodes=1)
BIG = Size(requests=1000, layers=58, experts=256, top_k=8, workers=16, gpus=64, nodes=8)


def build(size: Size = TINY, seed: int = 0) -> tuple[schema.Profile, Arrays]:
    """A profile that `store.write` takes, and its arrays."""
    rng = np.random.default_rng(seed)
    domain = rng.integers(len(DOMAINS), size=size.requests)
    language = rng.integers(len(LANGUAGES), size=size.requests)
    arrays, popularity = _counts(rng, size, domain, language)
    mask = tuple(int(x) for x in rng.permutation(size.layers)[: max(2, size.layers * 2 // 3)])
    arrays["idf"] = fits.idf(arrays["prefill_counts"])
    signatures = fits.signatures(arrays["prefill_counts"], arrays["idf"], mask)
    held = arrays["held_out"].astype(bool)
    bound = -(-int((~held).sum()) // size.workers)
    cluster, centroids = fits.balanced(rng, signatures, ~held, size.workers, bound)
    arrays["cluster"], arrays["centroids"] = cluster, centroids
    arrays["steps"] = fits.steps(rng, size.layers, size.experts, size.top_k)
    tokens = np.array([64, 128, 256, 512, 1024, 2048] * 4, float)
    at_once = np.repeat([1.0, 4.0], tokens.size // 2)
    spent = 0.0012 * at_once**0.5 + tokens * 1.1e-6 * at_once * rng.uniform(0.9, 1.2, tokens.size)
    arrays["transfers"] = np.stack([tokens, tokens * 12288, spent, at_once], 1)
    placements = []
    kinds: list[tuple[schema.PlacementKind, int]] = [
        ("linear", 0),
        ("eplb", size.gpus),
        ("joint", size.gpus),
    ]
    for kind, redundant in kinds:
        arrays[f"placement_{kind}"] = fits.placement(popularity, size.gpus, redundant, kind)
        placements.append(_placed(size, kind, redundant))
    labels = [(DOMAINS[d], LANGUAGES[g]) for d, g in zip(domain, language, strict=True)]
    sizes = np.bincount(cluster[cluster >= 0], minlength=size.workers)
    profile = schema.Profile(
        model=schema.ProfiledModel(
            name="sample-moe",
            architecture="Qwen3MoeForCausalLM",
            fingerprint="sha256:" + "ab" * 32,
            layers=tuple(range(size.layers)),
            experts=size.experts,
            top_k=size.top_k,
            hidden_layers=size.layers,
        ),
        setting=_setting(),
        data=schema.Data(
            origin="made up by tests/unit/profile/sample.py",
            requests=size.requests,
            held_out=int(held.sum()),
            prompt_tokens=int(arrays["prompt_tokens"].sum()),
            output_tokens=int(arrays["output_tokens"].sum()),
            domains={name: int((domain == i).sum()) for i, name in enumerate(DOMAINS)},
            languages={name: int((language == i).sum()) for i, name in enumerate(LANGUAGES)},
        ),
        requests=tuple(
            schema.ProfiledRequest(id=f"{d}-{g}-{i:03d}", domain=d, language=g)
            for i, (d, g) in enumerate(labels)
        ),
        activations=fits.activations(arrays),
        affinity=fits.affinity(arrays),
        correlation=fits.correlation(arrays),
        rho=_rho(rng, mask),
        centroids=schema.CentroidRows(
            k=size.workers,
            bound=bound,
            sizes=tuple(int(x) for x in sizes),
            inertia=0.212,
            vanilla_inertia=0.201,
            vanilla_sizes=fits.uneven(sizes),
            seed=seed,
            distinct=schema.Distinct(
                batch=8,
                random=0.62 * size.experts,
                clustered=0.5 * size.experts,
                by_domain=0.54 * size.experts,
                by_language=0.56 * size.experts,
                by_cell=0.48 * size.experts,
            ),
        ),
        latency=_latency(),
        transfer=schema.TransferFit(
            backend="mooncake (tcp)",
            bytes_per_token=12288.0,
            latency_ms=1.2,
            bandwidth_gb_s=11.2,
            median_ms=1.63,
            samples=len(tokens),
        ),
        placements=tuple(placements),
        steps_columns=("seconds", "requests", "kv_tokens", "new_tokens", "decode"),
    )
    return profile, arrays


def _counts(
    rng: np.random.Generator, size: Size, domain: NDArray[Any], language: NDArray[Any]
) -> tuple[Arrays, NDArray[Any]]:
    """Counts, token numbers, affinity and token samples; and the experts' use [L, E]."""
    shape = (size.layers, size.experts)
    base = rng.normal(0, 0.6, shape)
    by_domain = rng.normal(0, 0.9, (len(DOMAINS), *shape))
    by_language = rng.normal(0, 0.8, (len(LANGUAGES), *shape))
    prompt = rng.integers(24, 400, size.requests).astype(np.int32)
    output = rng.integers(16, 96, size.requests).astype(np.int32)
    prefill = np.empty((size.requests, *shape), np.int32)
    decode = np.empty_like(prefill)
    for n in range(size.requests):
        taste = base + by_domain[domain[n]] + by_language[language[n]]
        for counts, tokens in ((prefill, prompt[n]), (decode, output[n])):
            weights = np.exp(taste + rng.normal(0, 0.35, shape))
            weights /= weights.sum(1, keepdims=True)
            counts[n] = np.minimum(rng.multinomial(tokens * size.top_k, weights), tokens)
    decode[:, -1, 1] = 0  # an expert that never fires
    use = prefill.sum(0) / prefill.sum((0, 2))[:, None]
    pairs = use[:-1, :, None] * use[1:, None, :] * np.exp(rng.normal(0, 0.9, (1, *shape[1:] * 2)))
    pairs /= pairs.sum((1, 2), keepdims=True)
    held = np.zeros(size.requests, np.uint8)
    held[rng.permutation(size.requests)[: size.requests // 5]] = 1

    def sampled() -> NDArray[Any]:
        scores = rng.random((64, *shape)) + np.log(use + 1e-6)
        return np.argsort(-scores, axis=-1)[..., : size.top_k].astype(np.int16)

    arrays: Arrays = {
        "prefill_counts": prefill,
        "decode_counts": decode,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "held_out": held,
        "affinity_prefill": rng.poisson(pairs * prompt.sum() * size.top_k**2).astype(np.int64),
        "affinity_decode": rng.poisson(pairs * output.sum() * size.top_k**2).astype(np.int64),
        "tokens_fit": sampled(),
        "tokens_held_out": sampled(),
    }
    return arrays, use


def _setting() -> schema.Setting:
    return schema.Setting(
        sglang="0.5.21",
        device="CPU (Intel Xeon, 2 cores)",
        machine="sample-host",
        workers="1P + 2D",
        dtype="bfloat16",
        measured_at="2026-10-07T12:00:00+00:00",
        toolkit="0.1.0",
        commands=("toolkit profile run launch/cpu-demo.yaml",),
        note="Made-up numbers.",
    )


def _rho(rng: np.random.Generator, mask: tuple[int, ...]) -> schema.Rho:
    steps = np.concatenate([[0.52], np.full(len(mask) - 1, 0.22 / max(1, len(mask) - 1))])
    curve = np.cumsum(steps * np.linspace(1.4, 0.6, len(mask)))
    return schema.Rho(
        raw=0.583,
        binary=0.412,
        idf=0.691,
        idf_masked=float(curve[-1]),
        idf_masked_held_out=float(curve[-1]) - 0.031,
        mask=mask,
        curve=(*(float(x) for x in curve), float(curve[-1]) - 0.008),
    )


def _latency() -> schema.Latency:
    def fit(terms: dict[str, float], error: float, constant: float) -> schema.LinearFit:
        return schema.LinearFit(
            terms=tuple(terms),
            coefficients=tuple(terms.values()),
            units=tuple("s" if t == "1" else f"s / {t.rstrip('s')}" for t in terms),
            held_out_error=error,
            constant_error=constant,
            samples=900,
        )

    plain = {"1": 4.1e-3, "requests": 3.2e-4, "kv tokens": 9.1e-8}
    return schema.Latency(
        qoe=fit(
            {"1": 9e-3, "requests": 3e-4, "prompt tokens": 9e-8, "prompt tokens^2": 1.2e-11,
             "kv tokens": 1.1e-7}, 0.081, 0.44,
        ),
        distinct=fit({**plain, "distinct experts": 2.1e-5}, 0.052, 0.45),
        without_distinct=fit(plain, 0.077, 0.45),
        prefill=fit({"1": 6e-3, "new tokens": 2.1e-5}, 0.067, 0.71),
        note="distinct experts are summed over MoE layers",
    )  # fmt: skip


def _placed(size: Size, kind: schema.PlacementKind, redundant: int) -> schema.PlacementResult:
    cut = {"linear": 0.74, "eplb": 0.75, "joint": 0.49}[kind]
    return schema.PlacementResult(
        kind=kind,
        gpus=size.gpus,
        gpus_per_node=size.gpus // size.nodes,
        redundant=redundant,
        balance={"linear": 1.31, "eplb": 1.04, "joint": 1.05}[kind],
        balance_max={"linear": 1.62, "eplb": 1.09, "joint": 1.11}[kind],
        gpu_cut=cut,
        node_cut=cut * 0.66,
        fan_out={"linear": 2.71, "eplb": 2.74, "joint": 2.33}[kind],
        step={"linear": 1.0, "eplb": 0.93, "joint": 0.88}[kind],
        seconds={"linear": 0.0, "eplb": 0.02, "joint": 0.31}[kind],
    )


if __name__ == "__main__":
    from toolkit.profile.report import render

    chosen = BIG if "big" in sys.argv else TINY if "tiny" in sys.argv else Size()
    page = render(*build(chosen))
    Path(sys.argv[1]).write_text(page, "utf-8")
    print(f"{sys.argv[1]}: {len(page.encode()) / 1e6:.2f} MB")
