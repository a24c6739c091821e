"""Decode-step time against distinct experts and batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.profile.report import tables
from toolkit.profile_folder.schema import Profile
from toolkit.report import html, svg
from toolkit.report.axes import Chart, around
from toolkit.report.numbers import number, percent, quantity

if TYPE_CHECKING:
    from numpy.typing import NDArray

SECONDS, BATCH, DECODE = "seconds", "requests", "decode"
"""Names in `steps_columns`. Without `decode` (1 for decode steps) all rows are decode steps."""
MOST = 1500  # points drawn
_GROUPS = 7


@dataclass(frozen=True)
class StepColumns:
    """Columns of `steps`: milliseconds, requests and distinct experts (mean over layers), [M]."""

    ms: NDArray[Any]
    batch: NDArray[Any]
    distinct: NDArray[Any]
    others: NDArray[Any]
    """[M, F]: every column that is not the time, for the regression."""


def columns(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> StepColumns | None:
    """The decode steps, or None when the profile has none with a time and a batch size."""
    import numpy as np

    names = list(profile.steps_columns)
    if "steps" not in arrays or not {SECONDS, BATCH} <= set(names):
        return None
    rows = arrays["steps"].astype(np.float64)
    rows = rows[np.isfinite(rows).all(1)]
    if DECODE in names:
        rows = rows[rows[:, names.index(DECODE)] == 1]
    if len(rows) < 2:
        return None
    time, batch = names.index(SECONDS), names.index(BATCH)
    # A column that never changes says nothing, and the intercept is there already; CPU time is the
    # step's time once more.
    causes = [i for i, name in enumerate(names) if name not in (SECONDS, "cpu_seconds")]
    keep = [i for i in causes if np.ptp(rows[:, i]) > 0]
    return StepColumns(
        1e3 * rows[:, time], rows[:, batch], rows[:, len(names) :].mean(1), rows[:, keep]
    )


def section(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> str:
    steps = columns(profile, arrays)
    title = "Step latency"
    if steps is None:
        lead = "No decode steps were recorded for this profile."
        return html.section("s-steps", title, lead, tables.latency(profile))
    drawn = min(MOST, len(steps.ms))
    sample = f" {drawn:,} of {len(steps.ms):,} steps are drawn." if drawn < len(steps.ms) else ""
    figure = html.figure(
        "steps",
        _takeaway(profile, steps),
        [
            html.Panel(_against_distinct(steps), "Against distinct experts"),
            html.Panel(_against_batch(steps), "Against batch size"),
        ],
        reading="Each dot is a decode step of real requests. Lines are least squares through the "
        "dots of one batch size in the first picture, and medians by batch size in the second. The "
        f"slowest 1 % of the steps lie outside.{sample}",
    )
    return html.section("s-steps", title, "", figure, tables.latency(profile))


def _takeaway(profile: Profile, steps: StepColumns) -> str:
    slope, t = _slope(steps)
    if profile.latency.distinct is not None:
        # The profile's own fit does not follow stragglers; its term sums over the layers.
        each = profile.latency.distinct.coefficients[-1]
        slope = 1e3 * each * len(profile.model.layers)
    if abs(t) < 3:
        words = "At equal batch and KV tokens no effect of distinct experts could be measured"
    else:
        verb = "adds" if slope > 0 else "takes off"
        words = (
            "At equal batch and KV tokens, one more distinct expert a layer "
            f"{verb} {quantity(abs(slope) / 1e3, 's')} to a step"
        )
    without, distinct = profile.latency.without_distinct, profile.latency.distinct
    if without and distinct:
        words += (
            "; with that term the model's held-out error is "
            f"{percent(distinct.held_out_error)}, without it {percent(without.held_out_error)}"
        )
    return words + "."


def _slope(steps: StepColumns) -> tuple[float, float]:
    """ms for one more distinct expert a layer with all other columns equal, and its t value."""
    import numpy as np

    terms = np.column_stack([np.ones(len(steps.ms)), steps.others, steps.distinct])
    scale = np.maximum(np.abs(terms).max(0), 1e-12)
    terms = terms / scale
    found, *_ = np.linalg.lstsq(terms, steps.ms, rcond=None)
    rest = steps.ms - terms @ found
    noise = float(rest @ rest) / max(1, len(rest) - terms.shape[1])
    spread = float(np.sqrt(noise * np.linalg.pinv(terms.T @ terms)[-1, -1]))
    return float(found[-1] / scale[-1]), float(found[-1]) / (spread or 1e-12)


def _shown(steps: StepColumns) -> tuple[NDArray[Any], float]:
    """Indices of the steps that are drawn, and the highest time on the axis."""
    import numpy as np

    top = float(np.quantile(steps.ms, 0.99))
    inside = np.flatnonzero(steps.ms <= top)
    return inside[np.unique(np.linspace(0, len(inside) - 1, MOST).astype(int))], top


def _against_distinct(steps: StepColumns) -> str:
    import numpy as np

    shown, top = _shown(steps)
    x_range = around([float(steps.distinct.min()), float(steps.distinct.max())])
    chart = Chart(460, 380, x_range, (0.0, top * 1.04), right=60)
    chart.axes("distinct experts a layer (mean)", "step time, ms")
    ends = []
    for i, (low, high) in enumerate(_batches(steps.batch[shown])):
        rows = shown[(steps.batch[shown] >= low) & (steps.batch[shown] <= high)]
        x, y = steps.distinct[rows], steps.ms[rows]
        chart.add(svg.dots(chart.points(x.tolist(), y.tolist()), f"o{i}"))
        if len(rows) > 4 and np.ptp(x) > 0:
            a, b = np.polyfit(x, y, 1)
            line = chart.points([x.min(), x.max()], [a * x.min() + b, a * x.max() + b])
            chart.add(svg.polyline(line, "fit halo"), svg.polyline(line, f"fit o{i}"))
            ends.append((line[-1][1], _named(low, high), "label"))
        elif len(rows):
            middle = chart.points([float(np.median(x))], [float(np.median(y))])[0]
            ends.append((middle[1], _named(low, high), "label"))
    if ends:
        chart.add(svg.text(chart.width - chart.right + 6, 13, "batch", "name"))
    chart.add(*svg.spread(ends, chart.width - chart.right + 6))
    return chart.picture(
        "Decode-step time against distinct experts a layer",
        f"{len(shown)} steps, grouped by batch size; a line is fitted to each group.",
        "steps-distinct",
    )


def _batches(values: NDArray[Any]) -> list[tuple[float, float]]:
    """At most seven ranges of batch sizes with about as many steps each."""
    import numpy as np

    sizes = np.unique(values)
    if len(sizes) <= _GROUPS:
        return [(float(x), float(x)) for x in sizes]
    edges = np.unique(np.quantile(values, np.linspace(0, 1, _GROUPS + 1)))
    ranges = []
    for i in range(len(edges) - 1):
        end = edges[i + 1] + (i == len(edges) - 2)  # the last range holds its end, too
        inside = sizes[(sizes >= edges[i]) & (sizes < end)]
        if len(inside):
            ranges.append((float(inside[0]), float(inside[-1])))
    return ranges


def _named(low: float, high: float) -> str:
    return f"{low:.0f}" if low == high else f"{low:.0f}–{high:.0f}"


def _against_batch(steps: StepColumns) -> str:
    import numpy as np

    shown, top = _shown(steps)
    chart = Chart(460, 380, around(steps.batch.tolist()), (0.0, top * 1.04))
    chart.axes("requests in the batch", "step time, ms")
    # Spread sideways: batch sizes are whole numbers, and their dots would cover each other.
    shake = np.random.default_rng(0).uniform(-0.3, 0.3, len(shown))
    x: Sequence[float] = (steps.batch[shown] + shake).tolist()
    chart.add(svg.dots(chart.points(x, steps.ms[shown].tolist()), "o2"))
    sizes = np.unique(steps.batch)
    edges = sizes if len(sizes) <= 24 else np.quantile(sizes, np.linspace(0, 1, 13))[:-1]
    group = np.digitize(steps.batch, edges) - 1
    middles = [
        (float(np.median(steps.batch[group == g])), float(np.median(steps.ms[group == g])))
        for g in range(len(edges))
        if (group == g).any()
    ]
    line = chart.points([a for a, _ in middles], [b for _, b in middles])
    chart.add(svg.polyline(line, "fit halo"), svg.polyline(line, "fit o6"))
    chart.add(*(svg.circle(a, b, 3, "mark o6") for a, b in line))
    return chart.picture(
        "Decode-step time against batch size",
        f"Median from {number(middles[0][1])} ms at batch {middles[0][0]:.0f} to "
        f"{number(middles[-1][1])} ms at batch {middles[-1][0]:.0f}.",
        "steps-batch",
    )
