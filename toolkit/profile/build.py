"""Turn what was measured into a profile: statistics, fits, placements."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit import signatures
from toolkit.profile import latency, tally
from toolkit.profile.calibration_prompts import CalibrationPrompt
from toolkit.profile.measure import Measured
from toolkit.profile.placing import EpConfig, place_all
from toolkit.profile_folder.errors import ProfileError
from toolkit.profile_folder.schema import (
    Activations,
    Affinity,
    CentroidRows,
    Correlation,
    Data,
    Distinct,
    Profile,
    ProfiledModel,
    ProfiledRequest,
    Rho,
    Setting,
)

BATCHES = (8, 4, 2)
TOKENS_STORED = 20_000
STEPS_STORED = 20_000
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Options:
    """What to fit. `k` decode workers; `layouts` to place experts for."""

    k: int
    seed: int = 0
    layouts: tuple[EpConfig, ...] = ()
    origin: str = ""
    commands: tuple[str, ...] = ()
    note: str = ""


def build(
    measured: Measured, options: Options, say: Callable[[str], None]
) -> tuple[Profile, Arrays]:
    """A whole profile. `say` hears what is being done.

    Raises:
        ProfileError: the data cannot be fitted; the message says why and how to mend it.
    """
    shard, prompts = measured.shard, measured.prompts
    rows = [prompts[index] for index in shard.indices]
    held = np.array([prompt.held_out for prompt in rows])
    try:
        whole = signatures.Calibration(
            shard.prefill_counts, shard.decode_counts, shard.output_tokens
        )
        fitted, judged = whole.subset(~held), whole.subset(held)
        say("signatures: weights, layer mask, clusters")
        fit = signatures.fit(fitted.prefill, fitted.decode, fitted.tokens, options.k, options.seed)
        rho = _rho(fit, fitted, judged, options.seed)
        centroids = _centroids(fit, fitted, judged, [r for r in rows if r.held_out], options.seed)
    except ValueError as error:
        raise ProfileError(str(error)) from error
    cluster = np.full(len(rows), -1, dtype=np.int32)
    cluster[~held] = fit.labels
    arrays = _arrays(measured, held, options.seed)
    arrays |= {
        "idf": np.array(fit.space.weights),
        "centroids": np.array(fit.centroids),
        "cluster": cluster,
    }
    say("latency: step time, KV transfer")
    columns = tuple(str(name) for name in shard.columns)
    backend = measured.facts.first.transfer
    profile = Profile(
        model=_model(measured),
        setting=_setting(measured, options),
        data=_data(measured, rows, held, options.origin),
        requests=tuple(
            ProfiledRequest(id=r.id, domain=r.domain, language=r.language) for r in rows
        ),
        activations=_activations(shard.prefill_counts, shard.decode_counts),
        affinity=_affinity(measured),
        correlation=_correlation(shard.prefill_counts, shard.decode_counts),
        rho=rho,
        centroids=centroids,
        latency=latency.fit_steps(shard.steps, columns, shard.loads),
        transfer=latency.fit_transfer(shard.transfers, backend),
        steps_columns=columns,
    )
    return place_all(profile, arrays, options.layouts, options.seed, say)


def refit(profile: Profile, arrays: Arrays, k: int, seed: int) -> tuple[Profile, Arrays]:
    """The same profile with centroids for `k` decode workers; signatures stay as they are.

    Raises:
        ProfileError: more workers than fitted requests, or none.
    """
    held = arrays["held_out"].astype(bool)
    counts = (arrays["prefill_counts"], arrays["decode_counts"], arrays["output_tokens"])
    try:
        whole = signatures.Calibration(*counts)
        fitted, judged = whole.subset(~held), whole.subset(held)
        fit = signatures.fit(fitted.prefill, fitted.decode, fitted.tokens, k, seed)
        rows = [
            CalibrationPrompt(row.id, "", domain=row.domain, language=row.language)
            for row, out in zip(profile.requests, held, strict=True)
            if out
        ]
        centroids = _centroids(fit, fitted, judged, rows, seed)
    except ValueError as error:
        raise ProfileError(str(error)) from error
    cluster = np.full(len(held), -1, dtype=np.int32)
    cluster[~held] = fit.labels
    changed = {"centroids": np.array(fit.centroids), "cluster": cluster}
    return profile.model_copy(update={"centroids": centroids}), {**arrays, **changed}


def _model(measured: Measured) -> ProfiledModel:
    first = measured.facts.first
    return ProfiledModel(
        name=str(first.model).rstrip("/").rsplit("/", 1)[-1],
        architecture=str(first.architecture),
        fingerprint=first.fingerprint,
        layers=tuple(measured.layers),
        experts=measured.facts.experts,
        top_k=measured.facts.top_k,
        hidden_layers=int(first.experts.layers),
    )


def _setting(measured: Measured, options: Options) -> Setting:
    from toolkit import __version__

    first = measured.facts.first
    ranks = Counter[str]()
    for url, role in measured.roles.items():
        ranks[role] += measured.facts.hellos[url].dp_size
    letters = {"prefill": "P", "decode": "D", "plain": "plain"}
    return Setting(
        sglang=str(first.sglang),
        device=str(first.device),
        machine=str(first.machine),
        workers=" + ".join(f"{n}{letters.get(role, role)}" for role, n in ranks.items()),
        dtype=str(first.dtype),
        measured_at=time.strftime("%Y-%m-%d", time.gmtime()),
        toolkit=__version__,
        commands=options.commands,
        note=options.note,
    )


def _data(measured: Measured, rows: Sequence[Any], held: np.ndarray, origin: str) -> Data:
    return Data(
        origin=origin,
        requests=len(rows),
        held_out=int(held.sum()),
        prompt_tokens=int(measured.shard.prompt_tokens.sum()),
        output_tokens=int(measured.shard.output_tokens.sum()),
        domains=dict(Counter(row.domain for row in rows)),
        languages=dict(Counter(row.language for row in rows)),
    )


def _activations(prefill: np.ndarray, decode: np.ndarray) -> Activations:
    loads = [counts.sum(axis=0) for counts in (prefill, decode)]
    ratios = [load.max(axis=1) / np.maximum(load.mean(axis=1), 1e-12) for load in loads]
    idle = [(load == 0).sum(axis=1) for load in loads]
    return Activations(
        imbalance_prefill=tuple(ratios[0].tolist()),
        imbalance_decode=tuple(ratios[1].tolist()),
        idle_prefill=tuple(idle[0].tolist()),
        idle_decode=tuple(idle[1].tolist()),
    )


def _affinity(measured: Measured) -> Affinity:
    prefill, decode = measured.affinity["prefill"], measured.affinity["decode"]
    if not len(prefill):  # one MoE layer has no neighbour
        return Affinity(**dict.fromkeys(Affinity.model_fields, 0.0))
    apart = tally.independent(prefill + decode)
    share = tally.strongest_share
    return Affinity(
        top1_prefill=share(prefill, 0.01),
        top10_prefill=share(prefill, 0.10),
        top1_decode=share(decode, 0.01),
        top10_decode=share(decode, 0.10),
        top1_independent=share(apart, 0.01),
        top10_independent=share(apart, 0.10),
    )


def _correlation(prefill: np.ndarray, decode: np.ndarray) -> Correlation:
    total_prefill, total_decode = prefill.sum(axis=0), decode.sum(axis=0)
    each = np.array([_pearson(p, d) for p, d in zip(prefill, decode, strict=True)])
    layers = [_pearson(p, d) for p, d in zip(total_prefill, total_decode, strict=True)]
    p10, median, p90 = np.nanpercentile(each, [10, 50, 90]).tolist()
    return Correlation(
        model=_pearson(total_prefill, total_decode),
        by_layer=tuple(layers),
        per_request_median=median,
        per_request_p10=p10,
        per_request_p90=p90,
    )


def _pearson(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.ravel().astype(float), b.ravel().astype(float)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _rho(
    fit: signatures.CentroidFit,
    fitted: signatures.Calibration,
    judged: signatures.Calibration,
    seed: int,
) -> Rho:
    variants = {v.name: v for v in signatures.compare_variants(fitted, None, seed)}
    mask = fit.mask
    return Rho(
        raw=_defined(variants["count"].rho_all_layers),
        binary=_defined(variants["binary"].rho_all_layers),
        idf=_defined(variants["count_idf"].rho_all_layers),
        idf_masked=_defined(mask.rho),
        idf_masked_held_out=_defined(signatures.signature_rho(fit.space, judged, seed)),
        mask=mask.layers,
        curve=tuple(v for v in mask.curve[: len(mask.layers) + 1] if math.isfinite(v)),
    )


def _defined(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _centroids(
    fit: signatures.CentroidFit,
    fitted: signatures.Calibration,
    judged: signatures.Calibration,
    rows: list[Any],
    seed: int,
) -> CentroidRows:
    groups = {
        "clustered": [str(label) for label in fit.assign(judged.prefill)],
        "by_domain": [row.domain for row in rows],
        "by_language": [row.language for row in rows],
        "by_cell": [row.cell for row in rows],
    }
    vanilla = signatures.vanilla_kmeans(fit.space.signatures(fitted.prefill), fit.k, seed)
    return CentroidRows(
        k=fit.k,
        bound=-(-len(fit.labels) // fit.k),
        sizes=tuple(int(size) for size in fit.clusters.sizes),
        inertia=fit.clusters.inertia,
        vanilla_inertia=vanilla.inertia,
        vanilla_sizes=tuple(int(size) for size in vanilla.sizes),
        seed=seed,
        distinct=_distinct(judged, groups, seed),
    )


def _distinct(judged: signatures.Calibration, groups: dict[str, list[str]], seed: int) -> Distinct:
    """Reductions of each grouping against random batches of the same requests."""
    for batch in BATCHES:
        found = {}
        for name, labels in groups.items():
            known = np.array([label not in ("", "/") for label in labels])
            if known.sum() < batch:
                continue
            try:
                part = judged.subset(known)
                names = np.array(labels)[known]
                found[name] = signatures.distinct_reduction(part, names, batch, seed)
            except ValueError:  # no group of this kind is as large as a batch
                continue
        if "clustered" in found:
            random = found["clustered"].random_mean
            values = {name: random * (1 - d.reduction) for name, d in found.items()}
            return Distinct(batch=batch, random=random, **{n: values.get(n) for n in groups})
    raise ProfileError(
        "too few requests were held out to judge clusters: use more prompts, or a smaller --k"
    )


def _arrays(measured: Measured, held: np.ndarray, seed: int) -> Arrays:
    shard = measured.shard
    owner_held = np.isin(shard.token_owner, shard.indices[held])
    kept = [
        tally.sample_tokens(shard.tokens[part], TOKENS_STORED, seed)
        for part in (~owner_held, owner_held)
    ]
    steps = shard.steps
    if len(steps) > STEPS_STORED:
        chosen = np.random.default_rng(seed).choice(len(steps), STEPS_STORED, replace=False)
        steps = steps[np.sort(chosen)]
    return {
        "prefill_counts": shard.prefill_counts.astype(np.int32),
        "decode_counts": shard.decode_counts.astype(np.int32),
        "prompt_tokens": shard.prompt_tokens.astype(np.int32),
        "output_tokens": shard.output_tokens.astype(np.int32),
        "held_out": held.astype(np.uint8),
        "affinity_prefill": measured.affinity["prefill"],
        "affinity_decode": measured.affinity["decode"],
        "tokens_fit": kept[0].astype(np.int16),
        "tokens_held_out": kept[1].astype(np.int16),
        "steps": steps.astype(np.float32),
        "transfers": shard.transfers.astype(np.float64),
    }
