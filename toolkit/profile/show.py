"""A profile on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.profile.report.clusters import distinct_rows
from toolkit.profile.report.mask import variants
from toolkit.profile.report.placement import NAMES
from toolkit.profile.report.tables import FITS
from toolkit.profile_folder.schema import Profile
from toolkit.report.numbers import (
    MISSING,
    change,
    count,
    number,
    percent,
    plural,
    quantity,
    spark,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

MOST_LAYERS = 16  # rows of the table by layer; of more layers the ends and the extremes are shown


def show(profile: Profile) -> RenderableType:
    """Everything of profile.json that a person asks for, as tables to print with rich."""
    from rich.console import Group

    parts: list[RenderableType] = [
        _setting(profile),
        _layers(profile),
        _rho(profile),
        _clusters(profile),
        _latency(profile),
    ]
    if profile.transfer:
        parts.append(_transfer(profile))
    if profile.placements:
        parts.append(_placements(profile))
    spaced: list[RenderableType] = []
    for part in parts:
        spaced += [part, ""]
    return Group(*spaced[:-1])


def _setting(profile: Profile) -> Table:
    m, s, d = profile.model, profile.setting, profile.data
    rows = [
        ("architecture", m.architecture),
        ("experts", f"{plural(len(m.layers), 'MoE layer')} of {m.experts}, {m.top_k} a token"),
        ("fingerprint", m.fingerprint),
        ("measured", f"{s.measured_at}, SGLang {s.sglang}, toolkit {s.toolkit}"),
        ("on", f"{s.device}, {s.machine}, {s.workers}, {s.dtype}"),
        ("data", f"{d.origin}: {plural(d.requests, 'request')}, {count(d.held_out)} held out"),
        ("tokens", f"{count(d.prompt_tokens)} in prompts, {count(d.output_tokens)} in answers"),
        ("domains", _labels(d.domains)),
        ("languages", _labels(d.languages)),
        *(("command", command) for command in s.commands),
        *([("note", s.note)] if s.note else []),
    ]
    return _table(f"Profile of {m.name}", ("", ""), rows, words=2)


def _layers(profile: Profile) -> RenderableType:
    a, c, layers = profile.activations, profile.correlation, profile.model.layers
    worst = max(range(len(layers)), key=lambda i: a.imbalance_decode[i])
    weakest = min(range(len(layers)), key=lambda i: c.by_layer[i])
    shown = set(range(len(layers)))
    if len(layers) > MOST_LAYERS:
        ends = MOST_LAYERS // 2 - 1
        shown = {*range(ends), *range(len(layers) - ends, len(layers)), worst, weakest}
    rows: list[Sequence[str]] = []
    last = -1
    for i in sorted(shown):
        if i != last + 1:
            rows.append(("...", "", "", "", ""))
        idle = f"{a.idle_prefill[i]} / {a.idle_decode[i]}"
        load = (number(a.imbalance_prefill[i]), number(a.imbalance_decode[i]))
        rows.append((str(layers[i]), *load, idle, number(c.by_layer[i])))
        last = i
    f = profile.affinity
    table = _table(
        "Activations by layer (imbalance: max / mean over experts)",
        ("layer", "imbalance prefill", "decode", "idle experts P / D", "prefill-decode corr."),
        rows,
    )
    words = (
        f"Correlation of prefill and decode: {number(c.model)} over the model, "
        f"{number(c.per_request_median)} in the median request (80 % within "
        f"{number(c.per_request_p10)} to {number(c.per_request_p90)}).\n"
        f"Strongest 1 % of expert pairs between layers: {percent(f.top1_decode)} of decode traffic "
        f"({percent(f.top1_prefill)} of prefill, {percent(f.top1_independent)} if independent); "
        f"strongest 10 %: {percent(f.top10_decode)} ({percent(f.top10_independent)})."
    )
    return _with(table, words)


def _rho(profile: Profile) -> RenderableType:
    r = profile.rho
    names = {"mask, unseen": "with mask, on unseen requests"}
    rows = [
        (names.get(name, name), number(value) if value is not None else "undefined")
        for name, value in variants(profile)
    ]
    table = _table("Signatures: rho (Spearman of signature and decode distance)", ("", "rho"), rows)
    order = ", ".join(str(profile.model.layers[i]) for i in r.mask)
    kept = f"{len(r.mask)} of {len(profile.model.layers)} layers"
    words = f"Mask: {kept}, in the order taken: {order}"
    if r.curve:
        ends = f"{number(r.curve[0])} to {number(max(r.curve))}"
        words += f"\nrho as they are taken: {spark(list(r.curve))} {ends}"
    return _with(table, words)


def _clusters(profile: Profile) -> RenderableType:
    c = profile.centroids
    rows = [
        (name, number(value), "" if name == "random" else change(value, c.distinct.random))
        for name, value in distinct_rows(c.distinct)
    ]
    title = f"Distinct experts a layer in batches of {c.distinct.batch} held-out requests"
    table = _table(title, ("batch of", "distinct", "against random"), rows)
    words = (
        f"{c.k} clusters of at most {plural(c.bound, 'request')}: {_sizes(c.sizes)}; inertia "
        f"{number(c.inertia)} (ordinary k-means: {_sizes(c.vanilla_sizes)}; "
        f"{number(c.vanilla_inertia)})"
    )
    return _with(table, words)


def _latency(profile: Profile) -> RenderableType:
    from rich.columns import Columns

    tables = []
    for name, title in FITS.items():
        fit = getattr(profile.latency, name)
        if fit is None:
            continue
        rows = [
            (term, quantity(value, unit))
            for term, value, unit in zip(fit.terms, fit.coefficients, fit.units, strict=True)
        ]
        rows += [
            ("unseen error", percent(fit.held_out_error)),
            ("error of a constant", percent(fit.constant_error)),
            ("samples", count(fit.samples)),
        ]
        tables.append(_table(title, ("term", "coefficient"), rows))
    note = profile.latency.note
    return _with(Columns(tables, padding=(0, 4)), f"Latency: {note}" if note else "")


def _transfer(profile: Profile) -> Table:
    t = profile.transfer
    assert t is not None
    rows = [
        ("KV cache", f"{number(t.bytes_per_token)} bytes a token"),
        ("latency", f"{number(t.latency_ms)} ms"),
        ("bandwidth", f"{number(t.bandwidth_gb_s)} GB/s"),
        ("median", f"{number(t.median_ms)} ms"),
    ]
    title = f"KV transfer by {t.backend}, {plural(t.samples, 'sample')}"
    return _table(title, ("", ""), rows)


def _placements(profile: Profile) -> RenderableType:
    rows = [
        (
            NAMES[p.kind],
            f"{p.gpus} + {p.redundant}",
            f"{number(p.balance)} ({number(p.balance_max)})",
            percent(p.gpu_cut),
            percent(p.node_cut),
            number(p.fan_out),
            number(p.step),
            MISSING if p.gap is None else f"{number(p.gap)} %",
            quantity(p.seconds, "s"),
        )
        for p in profile.placements
    ]
    heads = (
        "placement", "GPUs + copies", "load max/mean (worst)", "cross GPU", "cross node",
        "GPUs a token", "step", "gap", "fit",
    )  # fmt: skip
    title = "Placements, judged on tokens that were not fitted (step: predicted, linear = 1)"
    table = _table(title, heads, rows)
    notes = (f"{NAMES[p.kind]}: {p.note}" for p in profile.placements if p.note)
    return _with(table, "\n".join(notes))


def _table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1
) -> Table:
    """The first `words` columns hold words, the others numbers (set right)."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD,
        show_header=any(headings),
        pad_edge=False, min_width=len(title),  # else the title is broken into lines
    )  # fmt: skip
    for i, heading in enumerate(headings):
        table.add_column(Text(heading), justify="left" if i < words else "right")
    for row in rows:
        # As Text: names and notes may hold square brackets, which are markup to rich.
        table.add_row(*(Text(cell) for cell in row))
    return table


def _with(table: RenderableType, words: str) -> RenderableType:
    """The table with words under it that may be wider than it is."""
    from rich.console import Group
    from rich.text import Text

    return Group(table, Text(words, "dim")) if words else table


def _labels(labels: dict[str, int]) -> str:
    ordered = sorted(labels.items(), key=lambda x: -x[1])
    return ", ".join(f"{name or 'unlabelled'} {count(n)}" for name, n in ordered) or "none given"


def _sizes(sizes: Sequence[int]) -> str:
    """All sizes where they are few, else their range."""
    if len(sizes) <= 8:
        return ", ".join(map(str, sizes))
    return f"{min(sizes)} to {max(sizes)}"
