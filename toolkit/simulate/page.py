"""A simulation as one self-contained page."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from toolkit import __version__
from toolkit.report import bars, html, svg
from toolkit.report.axes import Chart, Scale, around
from toolkit.report.numbers import MISSING, change, count, number, percent
from toolkit.report.skeleton import document, heading
from toolkit.simulate.histogram import Histogram
from toolkit.simulate.recorder import EFFORT, Recorder
from toolkit.simulate.session import Outcome
from toolkit.simulate.tables import NAMES

WIDE = 4.0
MOST_LINES = 24
"""Ranks that are drawn on their own; of more the fullest, the emptiest and the mean."""
SECTIONS = (
    ("s-load", "Load over time"),
    ("s-balance", "Balance"),
    ("s-latency", "Latency"),
    ("s-pareto", "Throughput and speed"),
    ("s-figures", "All figures"),
)

CLASSED = ("s-classes", "By class")


def render(outcome: Outcome, title: str, facts: str) -> str:
    """The report: load per rank over time, imbalance, latency distributions, throughput against
    speed, all figures. `facts`: one sentence on what was simulated."""
    sections = [
        html.section("s-load", "Load over time", "", _load(outcome)),
        html.section("s-balance", "Balance", "", _balance(outcome)),
        html.section("s-latency", "Latency", "", _latency(outcome)),
        html.section("s-pareto", "Throughput and speed", "", _pareto(outcome)),
        html.section("s-figures", "All figures", "", _figures(outcome)),
    ]
    entries = list(SECTIONS)
    if outcome.classes:
        sections.insert(3, html.section(*CLASSED, "", _by_class(outcome)))
        entries.insert(3, CLASSED)
    head = heading("Simulation", title, facts, _keys(outcome))
    footer = html.escape(f"Written by toolkit {__version__}. Simulated, not measured.")
    return document(title, head, entries, sections, footer)


def _keys(outcome: Outcome) -> list[tuple[str, str, str]]:
    """The first policy, against the best of the others where there are some."""
    name = outcome.arms[0]
    found = [
        ("TTFT p50", f"{outcome.median(0, 'ttft_p50') * 1e3:.0f} ms", name),
        ("TPOT mean", f"{outcome.median(0, 'tpot_mean') * 1e3:.1f} ms", name),
        ("Output tokens", f"{count(round(outcome.median(0, 'output_tokens_s')))} a second", name),
        ("At the barrier", percent(outcome.median(0, "barrier_share")), "of the ranks' steps"),
    ]
    others = range(1, len(outcome.arms))
    if others:
        best = max(others, key=lambda arm: outcome.median(arm, "output_tokens_s"))
        ours, theirs = (outcome.median(arm, "output_tokens_s") for arm in (0, best))
        found.append(("Throughput", change(ours, theirs, 1), f"against {outcome.arms[best]}"))
    return found


def _load(outcome: Outcome) -> str:
    most = max(max(map(max, r.series.values), default=0) for r in outcome.recorders)
    panels = [
        html.Panel(_lines(recorder, float(most), f"load-{arm}", name), name)
        for arm, (name, recorder) in enumerate(zip(outcome.arms, outcome.recorders, strict=True))
    ]
    return html.figure(
        "load",
        "KV tokens of each decode rank's batch. The farther lines lie apart, the longer all wait "
        "for the highest one where ranks step together.",
        panels,
        reading="One line a rank, from the first seed; the same scale in all pictures. Of more "
        f"than {MOST_LINES} ranks the fullest, the mean and the emptiest are drawn.",
    )


def _lines(recorder: Recorder, most: float, key: str, name: str) -> str:
    series = recorder.series
    end = max([*series.times, 1.0])
    chart = Chart(460, 260, (0.0, end), (0.0, most * 1.05 or 1.0), left=64)
    chart.axes("simulated seconds", "KV tokens")
    ranks = recorder.ranks
    if ranks <= MOST_LINES:
        lines = [([row[g] for row in series.values], f"c{g % 8}") for g in range(ranks)]
    else:
        looks: tuple[Callable[[Sequence[int]], float], ...] = (
            max,
            lambda row: sum(row) / len(row),
            min,
        )
        lines = [([look(row) for row in series.values], f"c{i}") for i, look in enumerate(looks)]  # type: ignore[misc]
    for values, colour in lines:
        chart.add(svg.polyline(chart.points(series.times, values), f"line thin {colour}"))
    return chart.picture(
        f"KV tokens on the decode ranks over time, {name}",
        f"{ranks} ranks; max - min is {number(recorder.result()['kv_spread'])} on average.",
        key,
    )


def _balance(outcome: Outcome) -> str:
    least = min(range(len(outcome.arms)), key=lambda arm: outcome.median(arm, "kv_spread"))
    panels = [
        html.Panel(_bars(outcome, "kv_spread", number, "spread"), "max - min KV tokens"),
        html.Panel(_bars(outcome, "barrier_share", percent, "barrier"), "share at the barrier"),
    ]
    return html.figure(
        "balance",
        f"Most level is {outcome.arms[least]}: "
        f"{number(outcome.median(least, 'kv_spread'))} KV tokens from emptiest to fullest rank.",
        panels,
        reading="Means over time, medians over seeds. The share at the barrier is that of the "
        "ranks' steps which is spent waiting, if they step together and a step takes time in "
        "proportion to KV tokens.",
    )


def _bars(outcome: Outcome, name: str, shown: Callable[[float], str], key: str) -> str:
    rows = []
    for arm, title in enumerate(outcome.arms):
        value = outcome.median(arm, name)
        rows.append(bars.Bar(title, value, shown(value), arm == 0))
    return bars.picture(rows, name, "; ".join(f"{b.name}: {b.words}" for b in rows), key)


def _latency(outcome: Outcome) -> str:
    panels = [
        html.Panel(_curves(outcome, name, title), title)
        for name, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "whole answers"))
    ]
    return html.figure(
        "latency",
        "How many requests were at most so slow.",
        panels,
        legend=_legend(outcome),
        reading="Cumulative distributions of the first seed; further left is faster. An axis of "
        "times that spans much is logarithmic.",
    )


def _by_class(outcome: Outcome) -> str:
    panels = [
        html.Panel(
            _curves(outcome, name, f"{title}, {NAMES[kind]}", kind), f"{title}, {NAMES[kind]}"
        )
        for kind in outcome.classes
        for name, title in (("ttft", "TTFT"), ("e2e", "whole answers"))
    ]
    drawn = html.figure(
        "classes",
        "How many requests of a class were at most so slow.",
        panels,
        legend=_legend(outcome),
        reading="Cumulative distributions of the first seed, as above.",
    )
    rows = []
    for kind in outcome.classes:
        for title, key, by in CLASS_FIGURES:
            values = [outcome.median(arm, f"{kind}.{key}") for arm in range(len(outcome.arms))]
            rows.append([f"{NAMES[kind]}: {title}", *(number(x * by, 4) for x in values)])
    if EFFORT in outcome.classes:
        means = [outcome.median(arm, f"{EFFORT}.e2e_mean") for arm in range(len(outcome.arms))]
        slower = [number(mean / means[0], 4) for mean in means]
        rows.append([f"{NAMES[EFFORT]}: slowdown, mean answer over the first policy's", *slower])
    caption = "Medians over the seeds; times in milliseconds."
    return drawn + html.table(caption, ("", *outcome.arms), rows)


def _curves(outcome: Outcome, name: str, title: str, kind: str = "") -> str:
    """`kind`: of which class; of all requests without one."""
    parts = [r.classes[kind] if kind else r.all for r in outcome.recorders]
    histograms: list[Histogram] = [getattr(part, name) for part in parts]
    known = [x for h in histograms for x, _ in h.curve() if x > 0]
    if not known:
        return f"<p>{MISSING}</p>"
    low, high = min(known) * 1e3, max(known) * 1e3
    chart = _LogX(460, 260, (low, high * 1.02), (0.0, 100.0), left=40)
    chart.axes("milliseconds", "percent of requests")
    for arm, histogram in enumerate(histograms):
        points = histogram.curve()
        spots = chart.points([x * 1e3 for x, _ in points], [100 * share for _, share in points])
        chart.add(svg.polyline(spots, f"line c{arm % 8}"))
    words = "; ".join(
        f"{arm}: half within {number(h.percentile(50) * 1e3)} ms"
        for arm, h in zip(outcome.arms, histograms, strict=True)
    )
    named = title if kind else f"{title} of all requests"
    return chart.picture(named, words, f"cdf-{kind}-{name}" if kind else f"cdf-{name}")


class _LogX(Chart):
    """A chart whose x axis alone is logarithmic, if it spans enough to have ticks then."""

    @property
    def across(self) -> Scale:
        return replace(super().across, log=self.x[1] > WIDE * self.x[0])


def _pareto(outcome: Outcome) -> str:
    ranks = outcome.recorders[0].ranks
    xs = [1 / outcome.median(arm, "tpot_mean") for arm in range(len(outcome.arms))]
    ys = [outcome.median(arm, "output_tokens_s") / ranks for arm in range(len(outcome.arms))]
    chart = Chart(560, 320, around(xs, room=0.15), around(ys, room=0.15), left=64)
    chart.axes("tokens a second of one user", "tokens a second of one decode rank")
    spots = chart.points(xs, ys)
    for arm, (x, y) in enumerate(spots):
        chart.add(svg.marker(x, y, arm, f"mark c{arm % 8}", outcome.arms[arm]))
    picture = chart.picture(
        "Throughput against speed",
        "; ".join(
            f"{name}: {number(x)} and {number(y)}"
            for name, x, y in zip(outcome.arms, xs, ys, strict=True)
        ),
        "pareto",
    )
    return html.figure(
        "throughput",
        "Further right is faster for each user, further up is more work done by the same ranks.",
        [html.Panel(picture, wide=True)],
        legend=_legend(outcome),
    )


def _legend(outcome: Outcome) -> str:
    return html.legend(
        [
            (html.sign(f"c{arm % 8}", svg.MARKERS[arm % len(svg.MARKERS)]), name)
            for arm, name in enumerate(outcome.arms)
        ]
    )


FIGURES = (
    ("TTFT mean", "ttft_mean", 1e3),
    ("TTFT p50", "ttft_p50", 1e3),
    ("TTFT p99", "ttft_p99", 1e3),
    ("TPOT mean", "tpot_mean", 1e3),
    ("TPOT p50", "tpot_p50", 1e3),
    ("TPOT p99", "tpot_p99", 1e3),
    ("answer p50", "e2e_p50", 1e3),
    ("answer p99", "e2e_p99", 1e3),
    ("waited for a rank, mean", "waited_mean", 1e3),
    ("output tokens a second", "output_tokens_s", 1.0),
    ("requests a second within objectives", "goodput_s", 1.0),
    ("KV tokens, fullest rank", "kv_max", 1.0),
    ("KV tokens, mean", "kv_mean", 1.0),
    ("KV tokens, max - min", "kv_spread", 1.0),
    ("share at the barrier, %", "barrier_share", 100.0),
    ("retractions", "retractions", 1.0),
    ("requests", "requests", 1.0),
)

MOVE_FIGURES = (
    ("requests moved", "moves", 1.0),
    ("of these as they outgrew their stage", "moves_outgrown", 1.0),
    ("for their rank's load", "moves_overload", 1.0),
    ("for even loads", "moves_level", 1.0),
    ("for their rank's KV limit", "moves_kv_limit", 1.0),
    ("moves given up", "moves_given_up", 1.0),
    ("KV tokens moved", "moved_tokens", 1.0),
    ("stall of a move, mean", "move_stall_mean", 1e3),
    ("stall of a move, p99", "move_stall_p99", 1e3),
)

CLASS_FIGURES = (
    *FIGURES[:8],
    ("answer mean", "e2e_mean", 1e3),
    ("requests a second within objectives", "goodput_s", 1.0),
    ("within objectives, %", "good_share", 100.0),
    ("requests", "requests", 1.0),
)


def _figures(outcome: Outcome) -> str:
    rows = [
        [title, *(number(outcome.median(arm, key) * by, 4) for arm in range(len(outcome.arms)))]
        for title, key, by in (*FIGURES, *(MOVE_FIGURES if outcome.moving else ()))
    ]
    seeds = len(outcome.figures[0])
    caption = f"Medians of {seeds} seed{'' if seeds == 1 else 's'}; times in milliseconds."
    return html.table(caption, ("", *outcome.arms), rows)
