"""What a plan prints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from toolkit.bench.stats import Ratio, mean_interval
from toolkit.plan.knob import shown
from toolkit.plan.needs import LARGEST, SLOWEST, Bound
from toolkit.report.numbers import percent, plural
from toolkit.simulate.recorder import CLASSES, URGENT
from toolkit.simulate.tables import NAMES

if TYPE_CHECKING:
    from rich.table import Table

    from toolkit.plan.candidate import Candidate
    from toolkit.plan.objective import Figures
    from toolkit.plan.planner import Planned
    from toolkit.plan.systems import SystemsPlanned

SHOWN = (
    ("TTFT mean, ms", "ttft_mean", 1e3, 1),
    ("TTFT p50, ms", "ttft_p50", 1e3, 1),
    ("TTFT p99, ms", "ttft_p99", 1e3, 1),
    ("TPOT mean, ms", "tpot_mean", 1e3, 2),
    ("TPOT p99, ms", "tpot_p99", 1e3, 2),
    ("to the last token, s", "e2e_mean", 1, 3),
    ("tokens/s", "output_tokens_s", 1, 1),
    ("goodput, requests/s", "goodput_s", 1, 3),
    ("within the SLO, %", "good_share", 100, 1),
)
BY_CLASS = (
    ("TTFT mean, ms", "ttft_mean", 1e3, 1),
    ("TTFT p99, ms", "ttft_p99", 1e3, 1),
    ("to the last token, s", "e2e_mean", 1, 3),
    ("within the SLO, %", "good_share", 100, 1),
)
LOAD = ("goodput_s", "good_share")
"""Figures that say something only where limits are given."""


def prediction(made: Planned) -> Table:
    """The baseline and the plan, means over the seeds with 95 % intervals, and their ratio."""
    from rich.table import Table

    title = f"predicted for {made.load}, {plural(made.task.seeds, 'seed')}"
    table = Table(title=title, title_justify="left")
    for name in ("", "baseline", "plan", "plan / baseline"):
        table.add_column(name, justify="right" if name else "left")
    rows = [*SHOWN, *_class_rows(made)]
    for name, key, by, digits in rows:
        if key.rpartition(".")[2] in LOAD and not made.task.slo.given:
            continue
        both = [_mean(figures, key, by, digits) for figures in (made.before, made.after)]
        table.add_row(name, *both, ratio_text(made.gain(key)))
    return table


def _class_rows(made: Planned) -> Iterator[tuple[str, str, float, int]]:
    figures = [*made.before, *made.after]
    for kind in CLASSES:
        if all(f"{kind}.requests" in each for each in figures):
            for name, key, by, digits in BY_CLASS:
                yield f"{NAMES[kind]}: {name}", f"{kind}.{key}", by, digits


def settings(made: Planned) -> Table:
    """Each knob: what was chosen, what is best, what other values do, whether it matters."""
    from rich.table import Table

    table = Table(title="settings (other values divided by the plan)", title_justify="left")
    for name in ("setting", "chosen", "best", "others", "time to last token", "goodput", "verdict"):
        table.add_column(name)
    for effect in made.effects:
        others = ", ".join(shown(other.value) for other in effect.others)
        goodput = _range(effect.goodput) if made.task.slo.given else "-"
        table.add_row(
            effect.name,
            shown(effect.chosen),
            shown(effect.best),
            others,
            _range(effect.latency),
            goodput,
            effect.verdict,
        )
    return table


def systems(found: SystemsPlanned, title: str) -> Table:
    """A row for each system: whether it can pay, why, and beside which alternative."""
    from rich.table import Table

    from toolkit.bench.suite.verdicts import price_text

    table = Table(title=title, title_justify="left")
    for name in ("system", "answer", "why", "against", "price"):
        table.add_column(name, overflow="fold")
    for each in found.answers:
        verdict = each.verdict
        table.add_row(
            each.system, verdict.answer, verdict.why, verdict.against, price_text(verdict)
        )
    for system, why in found.left_out:
        table.add_row(system, "not asked", why)
    return table


def sentences(made: Planned) -> Iterator[str]:
    """What the tables mean."""
    yield f"baseline: {sized(made.baseline)}"
    yield f"plan: {sized(made.plan)}"
    slo = made.task.slo
    if slo.given and made.met:
        share = _mean(made.after, "good_share", 100, 1)
        theirs = f" and {_theirs(made)}" if slo.by_class else ""
        asked = percent(slo.attainment)
        yield f"{slo}: {share} % of requests{theirs}, {asked} are asked for"
    groups = {
        verdict: [effect.name for effect in made.effects if effect.verdict == verdict]
        for verdict in ("matters", "does not matter", "unclear")
    }
    if groups["matters"]:
        yield f"what matters: {', '.join(groups['matters'])}"
    if groups["does not matter"]:
        yield f"what does not matter here: {', '.join(groups['does not matter'])}"
    if groups["unclear"]:
        yield f"not told apart, more --seeds would: {', '.join(groups['unclear'])}"
    if made.unseen:
        yield f"not looked at, the --budget was used up: {', '.join(made.unseen)}"
    yield from made.remarks


def refusal(made: Planned) -> Iterator[str]:
    """That the objectives cannot be met, and what would be needed."""
    slo, wanted = made.task.slo, made.needs
    share = _mean(made.after, "good_share", 100, 1)
    theirs = f" ({_theirs(made)})" if slo.by_class else ""
    yield (
        f"no setting of these {made.plan.workers} workers meets {slo} for "
        f"{percent(slo.attainment)} of requests; best: {share} %{theirs} with {made.plan}"
    )
    if wanted is None:
        return
    if wanted.bounds:
        yield from (_alone(bound) for bound in wanted.bounds)
        yield "no number of workers and no less traffic helps: other limits, or faster hardware"
        return
    yield _rate_text(wanted.rate, made, wanted.spent)
    if wanted.split is not None:
        prefill, decode = wanted.split
        yield (
            f"with all of it {wanted.workers} workers meet it: {prefill} prefill + {decode} decode"
        )
    elif wanted.spent:
        yield "how many workers it takes was not found within --budget"
    else:
        yield f"{LARGEST * made.plan.workers} workers ({LARGEST} times as many) do not meet it"


def sized(candidate: Candidate) -> str:
    """Split, policies and sizes in one line."""
    stopping = candidate.fleet.prefill.preempt
    stops = ""
    if stopping is not None:
        rules = stopping.rules
        stops = f", preempt {rules.policy} every {plural(rules.slice, 'layer')}"
    decode = candidate.fleet.decode
    ranks = f", {decode.dp} ranks each" if decode.dp > 1 else ""
    return (
        f"{candidate}{ranks}, {plural(decode.slots, 'request')} a rank, chunks of "
        f"{candidate.fleet.prefill.chunk}{stops}"
    )


def ratio_text(ratio: Ratio | None) -> str:
    """`0.912 (0.880 to 0.945)`."""
    return "-" if ratio is None else _interval(ratio, 1, 3)


def head(made: Planned, command: str, file: str) -> list[str]:
    """Comment lines for the file that is written."""
    names = (("TTFT mean", "ttft_mean"), ("TPOT mean", "tpot_mean"))
    said = [f"{name} {_mean(made.after, key, 1e3, 1)} ms" for name, key in names]
    gain = f"{ratio_text(made.gain('e2e_mean'))} times the time to the last token of"
    lines = [
        f"From {file} (whose comments are not kept), by:",
        f"  {command}",
        f"Predicted for {made.load}, mean of {plural(made.task.seeds, 'seed')} (95 % interval):",
        f"  {', '.join(said)};",
        f"  {gain}",
        f"  {made.baseline}.",
    ]
    if made.task.slo.given:
        theirs = f", {_theirs(made)}" if made.task.slo.by_class else ""
        share = _mean(made.after, "good_share", 100, 1)
        lines.append(f"  {made.task.slo} for {share} % of requests{theirs}.")
    free = [effect.name for effect in made.effects if effect.verdict == "does not matter"]
    return [*lines, *([f"Does not matter here: {', '.join(free)}."] if free else [])]


def _theirs(made: Planned) -> str:
    share = _mean(made.after, f"{URGENT}.good_share", 100, 1)
    return f"{share} % of latency-sensitive ones"


def _alone(bound: Bound) -> str:
    what = "next tokens" if bound.what == "TPOT" else "first token"
    each = " each" if bound.what == "TPOT" else ""
    return (
        f"a request that has all workers to itself gets its {what} after "
        f"{bound.seconds * 1e3:.4g} ms{each} (median; the median prompt has {bound.prompt} "
        f"tokens), {bound.what} is limited to {bound.limit * 1e3:g} ms: {percent(bound.share)} of "
        "such requests keep it"
    )


def _rate_text(rate: float | None, made: Planned, spent: bool) -> str:
    flying = made.task.in_flight
    what = "rate" if flying is None else "number in flight"
    if not rate:
        if spent:
            return f"the {what} that it would serve was not found within --budget"
        return f"not even {percent(SLOWEST)} of this {what} is served so"
    more = " (at least: the --budget was used up)" if spent else ""
    served = f"{rate * made.rate:.3g} requests/s" if flying is None else _at_a_time(rate * flying)
    return f"it serves {percent(rate)} of this {what} so, {served}{more}"


def _at_a_time(count: float) -> str:
    return f"{max(1, round(count))} at a time"


def _mean(figures: Figures, key: str, by: float, digits: int) -> str:
    values = [each[key] for each in figures]
    if not all(math.isfinite(value) for value in values):
        return "-"
    found = mean_interval(values)
    most = 1.0 if key.endswith("good_share") else math.inf
    # Student's interval knows neither that a time is above 0 nor that a share ends at 1.
    kept = replace(found, low=max(0.0, found.low), high=min(most, found.high))
    return _interval(kept if found.pairs > 1 else found, by, digits)


def _interval(found: Ratio, by: float, digits: int) -> str:
    value = f"{found.value * by:.{digits}f}"
    if found.pairs < 2:
        return value
    return f"{value} ({found.low * by:.{digits}f} to {found.high * by:.{digits}f})"


def _range(ends: tuple[float, float]) -> str:
    low, high = ends
    return "-" if math.isnan(low + high) else f"{low:.3f} to {high:.3f}"
