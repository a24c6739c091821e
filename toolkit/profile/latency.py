"""Fit step time and KV transfer time. Pure numpy and scipy.

Errors that matter are relative (a step of 10 ms and one of 100 ms count alike), and a shared
machine adds outliers in one direction: rows are weighted by 1 / seconds and fitted with a soft-l1
loss, which is least squares near zero and does not follow stragglers. CascadeInfer's D_0..D_4 are
fitted so, and by plain least squares as its paper does; both are judged on the same held-out rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.profile_folder.schema import Latency, LinearFit, TransferFit

if TYPE_CHECKING:
    import numpy as np

LEAST_ROWS = 30
"""Fewer rows are not fitted."""
HELD_OUT_EVERY = 4
"""Every fourth row judges; the order of rows is that of time, so both parts see all conditions."""
QOE_TERMS = ("1", "requests", "prompt tokens", "prompt tokens^2", "kv tokens")


def fit(
    terms: tuple[str, ...],
    features: np.ndarray,
    seconds: np.ndarray,
    nonnegative: bool = True,
    plain: bool = False,
) -> LinearFit | None:
    """Seconds [M] on features [M, terms], robust and relative; None with too few rows.

    With `nonnegative` no term may speed a step up, which also keeps collinear terms apart. `plain`:
    the sum of squared seconds is least, nothing else (then no sign is asked for).
    """
    import numpy as np

    good = np.isfinite(features).all(axis=1) & np.isfinite(seconds) & (seconds > 0)
    features, seconds = features[good], seconds[good]
    if len(seconds) < max(LEAST_ROWS, 4 * features.shape[1]):
        return None
    held = np.arange(len(seconds)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    scale = np.abs(features[~held]).max(axis=0)
    scale[scale == 0] = 1.0
    design = features / scale
    if plain:
        found = np.linalg.lstsq(design[~held], seconds[~held], rcond=None)[0]
    else:
        found = _robust(design[~held], seconds[~held], nonnegative)
    predicted = design[held] @ found
    constant = float(np.mean(seconds[~held]))
    return LinearFit(
        terms=terms,
        coefficients=tuple(float(c) for c in found / scale),
        units=tuple("s" if term == "1" else f"s / {term.rstrip('s')}" for term in terms),
        held_out_error=float(np.mean(np.abs(predicted / seconds[held] - 1))),
        constant_error=float(np.mean(np.abs(constant / seconds[held] - 1))),
        samples=len(seconds),
    )


def _robust(design: np.ndarray, seconds: np.ndarray, nonnegative: bool) -> np.ndarray:
    """Coefficients [terms]: relative residuals, soft-l1."""
    import numpy as np
    from scipy.optimize import least_squares

    weighted = design / seconds[:, None]
    low = 0.0 if nonnegative else -np.inf
    start = np.full(design.shape[1], float(np.median(seconds)) / design.shape[1])
    found = least_squares(
        lambda c: weighted @ c - 1, start, bounds=(low, np.inf), loss="soft_l1", f_scale=0.1
    )
    coefficients: np.ndarray = found.x
    return coefficients


def fit_qoe(loads: np.ndarray) -> tuple[LinearFit | None, LinearFit | None]:
    """CascadeInfer's D_0..D_4 (section 4.1), ours and as published.

    `loads` [N, 5]: a request's seconds by output token, and the mean F_1..F_4 of its batches. Ours
    lets no term speed a request up; plain least squares may, where lengths and batch sizes of the
    data do not tell F_2, F_3 and F_4 apart.
    """
    import numpy as np

    features = np.column_stack([np.ones(len(loads)), loads[:, 1:]])
    return (
        fit(QOE_TERMS, features, loads[:, 0]),
        fit(QOE_TERMS, features, loads[:, 0], plain=True),
    )


def _negative(found: LinearFit | None) -> str:
    """What a negative D_k says of the data; empty where none is."""
    if found is None:
        return ""
    terms = [t for t, c in zip(found.terms, found.coefficients, strict=True) if c < 0]
    if not terms:
        return ""
    return (
        f"; the published QoE fit is negative for {', '.join(terms)}: these requests do not tell "
        "its terms apart, or their answers are of unlike lengths, over which Q spreads the prefill"
    )


def fit_steps(steps: np.ndarray, columns: tuple[str, ...], loads: np.ndarray) -> Latency:
    """All models of step time.

    Args:
        steps: [M, F + L], columns as named, then the distinct experts of each MoE layer.
        loads: [N, 5] seconds by output token and mean F_1..F_4 of each request's batches.
    """
    import numpy as np

    if not len(steps):
        return Latency(note="no steps were logged")
    at = {name: steps[:, i] for i, name in enumerate(columns)}
    distinct = steps[:, len(columns) :].sum(axis=1)
    decode, one = at["decode"] == 1, np.ones(len(steps))
    # A rank that shares its experts does not know them where another one ran a prompt meanwhile.
    known = decode & (distinct > 0)
    known = known if known.any() else decode
    plain = np.stack([one, at["requests"], at["kv_tokens"]], axis=1)
    with_experts = np.column_stack([plain, distinct])
    fresh = np.stack([one, at["new_tokens"], at["new_tokens"] * at["kv_tokens"]], axis=1)
    names = ("1", "requests", "kv tokens")
    qoe, published = fit_qoe(loads)
    accepted = _accepted(at["requests"][decode], at["new_tokens"][decode])
    return Latency(
        qoe=qoe,
        qoe_published=published,
        distinct=fit((*names, "distinct experts"), with_experts[known], at["seconds"][known]),
        without_distinct=fit(names, plain[known], at["seconds"][known]),
        prefill=fit(
            ("1", "new tokens", "new tokens x kv tokens"), fresh[~decode], at["seconds"][~decode]
        ),
        accepted=accepted,
        note="distinct experts are summed over MoE layers; decode steps of every worker together"
        + _drafted(accepted)
        + _negative(published),
    )


def _accepted(requests: np.ndarray, new_tokens: np.ndarray) -> float | None:
    """Tokens that a step gave a request; None where there was no draft, or it was never right."""
    wanted, given = float(requests.sum()), float(new_tokens.sum())
    return given / wanted if given > wanted > 0 else None


def _drafted(accepted: float | None) -> str:
    return "" if accepted is None else f"; with a draft a step gave a request {accepted:.2f} tokens"


def fit_transfer(transfers: np.ndarray, backend: str) -> TransferFit | None:
    """Latency and bandwidth of [R, 4] (tokens, bytes, seconds, requests at once).

    Transfers of the smallest waves are fitted: in larger ones they wait for each other. Where the
    time does not grow with the size, the bandwidth is the best that was seen, a lower bound.
    None when nothing was moved.
    """
    import numpy as np

    moved = transfers[(transfers[:, 1] > 0) & (transfers[:, 2] > 0)]
    if not len(moved):
        return None
    for at_once in np.unique(moved[:, 3]):
        alone = moved[moved[:, 3] <= at_once]
        if len(alone) >= LEAST_ROWS:
            moved = alone
            break
    tokens, size, seconds, _ = moved.T
    line = fit(("1", "bytes"), np.stack([np.ones(len(size)), size], axis=1), seconds)
    constant, slope = line.coefficients if line is not None else (0.0, 0.0)
    grows = slope * size.max() > 0.05 * constant
    rate = 1 / slope if grows else float((size / seconds).max())
    return TransferFit(
        backend=backend,
        bytes_per_token=float(size.sum() / tokens.sum()),
        latency_ms=constant * 1e3,
        bandwidth_gb_s=rate / 1e9,
        median_ms=float(np.median(seconds)) * 1e3,
        samples=len(moved),
    )
