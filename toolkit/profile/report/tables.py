"""Where the figures come from, and those that no picture shows."""

from toolkit.profile_folder.schema import LinearFit, Profile
from toolkit.report import html
from toolkit.report.numbers import count, number, percent, quantity

FITS = {
    "distinct": "Decode step, with distinct experts",
    "without_distinct": "Decode step, without them",
    "qoe": "Latency by output token, CascadeInfer's QoE, robust",
    "qoe_published": "The same by least squares, as published",
    "prefill": "Prefill step",
}


def latency(profile: Profile) -> str:
    """One table a fitted model, or a sentence that there is none."""
    fits = {name: getattr(profile.latency, name) for name in FITS}
    tables = [_fit(FITS[name], fit) for name, fit in fits.items() if fit]
    said = html.escape(profile.latency.note)
    note = f'<p class="small">{said}</p>' if said else ""
    if not tables:
        return f'<p class="small">No latency model was fitted.</p>{note}'
    return f'<div class="tables">{"".join(tables)}</div>{note}'


def _fit(name: str, fit: LinearFit) -> str:
    rows = [
        [term.replace("^2", "²"), quantity(value, unit.replace("^2", "²"))]
        for term, value, unit in zip(fit.terms, fit.coefficients, fit.units, strict=True)
    ]
    rows += [
        ["Held-out error", percent(fit.held_out_error)],
        ["Error of a constant", percent(fit.constant_error)],
        ["Samples", count(fit.samples)],
    ]
    return html.table(name, ("Term", "Coefficient"), rows)


def setting(profile: Profile) -> str:
    """Model, machine and data: what must be known to trust or repeat the figures."""
    m, s, d = profile.model, profile.setting, profile.data
    layers = f"{len(m.layers)} ({_ranges(m.layers)})"
    rows = [
        ["Model", m.name],
        ["Architecture", m.architecture],
        ["Fingerprint", m.fingerprint],
        ["MoE layers", layers],
        ["Experts a layer", str(m.experts)],
        ["Experts a token", str(m.top_k)],
        ["SGLang", s.sglang],
        ["Toolkit", s.toolkit],
        ["Device", s.device],
        ["Machine", s.machine],
        ["Workers", s.workers],
        ["Weights' type", s.dtype],
        ["Measured at", s.measured_at],
        ["Calibration data", d.origin],
        ["Requests", f"{count(d.requests)}, of them {count(d.held_out)} held out"],
        ["Tokens", f"{count(d.prompt_tokens)} in prompts, {count(d.output_tokens)} in answers"],
        ["Domains", _counts(d.domains)],
        ["Languages", _counts(d.languages)],
        *(["Command", command] for command in s.commands),
        *([["Note", s.note]] if s.note else []),
    ]
    return html.table("What was measured, and where.", ("", ""), rows, words=2, cls="setting")


def centroids(profile: Profile) -> str:
    c = profile.centroids
    rows = [
        ["Clusters", str(c.k), ""],
        ["Largest allowed", f"{c.bound} requests", "no bound"],
        ["Sizes", ", ".join(map(str, c.sizes)), ", ".join(map(str, c.vanilla_sizes))],
        ["Inertia (mean cosine distance)", number(c.inertia), number(c.vanilla_inertia)],
        ["Seed", str(c.seed), ""],
    ]
    heads = ("", "Balanced (in use)", "Ordinary k-means")
    return html.table("Clustering.", heads, rows, words=3)


def _counts(labels: dict[str, int]) -> str:
    ordered = sorted(labels.items(), key=lambda x: -x[1])
    return ", ".join(f"{name or 'unlabelled'} {count(n)}" for name, n in ordered) or "none given"


def _ranges(numbers: tuple[int, ...]) -> str:
    """1, 2, 3, 7 as "1–3, 7"."""
    found: list[list[int]] = []
    for x in numbers:
        if found and x == found[-1][-1] + 1:
            found[-1] = [found[-1][0], x]
        else:
            found.append([x])
    return ", ".join("–".join(map(str, x)) for x in found)
