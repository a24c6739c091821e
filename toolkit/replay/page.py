"""A replay as one self-contained page."""

from statistics import fmean

from toolkit import __version__
from toolkit.decide.what_if import Side, WhatIf
from toolkit.replay.tables import facts, figures
from toolkit.report import bars, html, svg
from toolkit.report.axes import Chart
from toolkit.report.numbers import change, count, number, percent
from toolkit.report.skeleton import document, heading

POINTS = 200
"""A line has at most so many: each is the mean of as many decisions as that takes."""
SECTIONS = (("r-balance", "Balance"), ("r-ranks", "By rank"), ("r-figures", "All figures"))
NOTE = (
    "Both policies saw the same arrivals, each with the load that its own choices made. How long a "
    "request ran is as recorded."
)


def render(found: WhatIf, title: str) -> str:
    """The page: KV tokens above the mean over the record, requests by rank, all figures."""
    sections = [
        html.section("r-balance", "Balance", "", _balance(found)),
        html.section("r-ranks", "By rank", "", _ranks(found)),
        html.section(
            "r-figures",
            "All figures",
            "",
            html.table(
                NOTE, ("", found.recorded.name, found.other.name), [list(r) for r in figures(found)]
            ),
        ),
    ]
    head = heading("What if", title, facts(found), _keys(found))
    footer = html.escape(f"Written by toolkit {__version__}. Replayed, not measured.")
    return document(title, head, SECTIONS, sections, footer)


def _keys(found: WhatIf) -> list[tuple[str, str, str]]:
    keys = [("Decisions", count(found.decisions), "on record")]
    if found.decisions:
        keys.append(("Alike", percent(found.same / found.decisions), found.other.name))
    ours, theirs = (_mean(side) for side in (found.other, found.recorded))
    if theirs:
        keys.append(("At the fullest rank", change(ours, theirs, 1), "KV tokens above the mean"))
    return keys


def _mean(side: Side) -> float:
    return fmean(side.above_mean) if side.above_mean else 0.0


def _balance(found: WhatIf) -> str:
    lines = [_thinned(side.above_mean) for side in found.sides]
    most = max((max(line) for line in lines if line), default=0.0)
    chart = Chart(
        720, 280, (0.0, float(max(found.decisions, 1))), (0.0, most * 1.05 or 1.0), left=64
    )
    chart.axes("decisions", "KV tokens above the mean")
    for arm, line in enumerate(lines):
        step = max(1, found.decisions) / max(1, len(line))
        at = [step * (place + 0.5) for place in range(len(line))]
        chart.add(svg.polyline(chart.points(at, line), f"line c{arm}"))
    words = "; ".join(f"{side.name}: {number(_mean(side))} on average" for side in found.sides)
    drawn = chart.picture("KV tokens of the fullest rank above the mean", words, "above-mean")
    return html.figure(
        "above",
        "How far the fullest rank lies above the mean. Where ranks step together, all others wait "
        "for it.",
        [html.Panel(drawn, "over the record")],
        legend=html.legend(
            [
                (html.sign(f"c{arm}", svg.MARKERS[arm]), side.name)
                for arm, side in enumerate(found.sides)
            ]
        ),
        reading="Means of neighbouring decisions; lower is better.",
    )


def _thinned(values: list[float]) -> list[float]:
    width = max(1, -(-len(values) // POINTS))
    return [fmean(values[at : at + width]) for at in range(0, len(values), width)]


def _ranks(found: WhatIf) -> str:
    keys = sorted({*found.recorded.placed, *found.other.placed})
    panels = []
    for number_, side in enumerate(found.sides):
        rows = [
            bars.Bar(
                f"{name}:{rank}", float(side.placed[name, rank]), count(side.placed[name, rank])
            )
            for name, rank in keys
        ]
        words = "; ".join(f"{row.name}: {row.words}" for row in rows)
        panels.append(
            html.Panel(bars.picture(rows, side.name, words, f"placed-{number_}"), side.name)
        )
    return html.figure("placed", "Requests by rank.", panels, reading="The same requests in both.")
