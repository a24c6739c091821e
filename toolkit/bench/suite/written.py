"""What the suite leaves behind: a deployment file with what pays, a page, and the figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import __version__
from toolkit.bench.suite.question import BASE, Changes
from toolkit.bench.suite.variants import changed
from toolkit.bench.suite.verdicts import judge, median, price_text
from toolkit.policies import make_policy
from toolkit.report import html
from toolkit.report.skeleton import document as page_of
from toolkit.report.skeleton import heading

if TYPE_CHECKING:
    from toolkit.bench.stats import Ratio
    from toolkit.bench.suite.play import Suite
    from toolkit.bench.suite.verdicts import SuiteVerdict

CHOOSES = {"expert locality": "eldr", "level KV": "level"}
"""Systems that choose decode ranks, and the policy of each."""
END = 2000
"""Characters of what is known of a variant that did not run."""
_COLUMNS = ("system", "answer", "why", "against", "price", "pairs")


def chosen(suite: Suite, verdicts: Sequence[SuiteVerdict]) -> dict[str, Any]:
    """The deployment file with what pays on and what does not off. What is undecided stays as the
    user has it. Where what chose decode ranks is off, the best alternative chooses."""
    changes: list[Changes] = []
    for verdict in verdicts:
        if verdict.answer != "undecided":
            question = verdict.question
            changes.append(question.on if verdict.answer == "on" else question.off)
            if verdict.answer == "off" and question.takes_best:
                changes += _best(suite, verdict)
    policy = _decode_policy(suite.document, verdicts)
    if policy:
        changes.append({"router": {"decode_policy": policy}})
    return changed(suite.document, *changes)


def _best(suite: Suite, verdict: SuiteVerdict) -> list[Changes]:
    """What the best alternative changes, where it is surely better than the plainest: who won by
    chance is not turned on."""
    question = verdict.question
    plainest = question.others[0]
    (best,) = [arm for arm in question.others if arm.name == verdict.against]
    if best.variant in (BASE, plainest.variant):
        return []
    rounds = {arm: own for (kind, arm), own in suite.played.items() if kind == question.traffic}
    alone = judge(replace(question, ours=best, also=(), others=(plainest,)), rounds)
    return [suite.asked.variants[best.variant]] if alone.answer == "on" else []


def _decode_policy(document: Mapping[str, Any], verdicts: Sequence[SuiteVerdict]) -> str:
    """Empty: it stays."""
    choosing = {v.question.system: v for v in verdicts if v.question.system in CHOOSES}
    on = {system for system, verdict in choosing.items() if verdict.answer == "on"}
    if len(on) == len(CHOOSES):
        return "composed@eldr+level"
    if on:
        return CHOOSES[on.pop()]
    router = document.get("router")
    used = make_policy(
        str((router if isinstance(router, dict) else {}).get("decode_policy", "shortest_queue")),
        side="decode",
    ).needs
    uses = {"expert locality": used.signature, "level KV": used.pool or not used.signature}
    for system, verdict in choosing.items():
        if verdict.answer == "off" and uses[system]:
            (arm,) = [each for each in verdict.question.others if each.name == verdict.against]
            return arm.policies["decode"]
    return ""


def write_deployment(path: Path, suite: Suite, verdicts: Sequence[SuiteVerdict]) -> None:
    """With a line for each verdict at its head."""
    import yaml

    lines = [f"# Written by `toolkit bench suite` ({__version__}):", "#"]
    lines += [f"# - {v.question.system}: {v.answer} ({v.why})" for v in verdicts]
    lines += [f"# - {each.system}: not asked ({each.why})" for each in suite.asked.left_out]
    lines += [
        f"# Run beside it: {v.question.beside}"
        for v in verdicts
        if v.answer == "on" and v.question.beside
    ]
    body = yaml.safe_dump(chosen(suite, verdicts), sort_keys=False, allow_unicode=True)
    path.write_text("\n".join([*lines, body]), encoding="utf-8")


def rows(verdicts: Sequence[SuiteVerdict]) -> list[tuple[str, ...]]:
    """A line for each question, in words."""
    return [
        (
            verdict.question.system,
            verdict.answer,
            verdict.why,
            verdict.against,
            price_text(verdict),
            str(verdict.pairs),
        )
        for verdict in verdicts
    ]  # fmt: skip


def as_json(suite: Suite, verdicts: Sequence[SuiteVerdict]) -> dict[str, Any]:
    """Plain data: the verdicts, and every round."""
    return {
        "verdicts": [
            {**dict(zip(_COLUMNS, row, strict=True)), "ratio": _ratio(v.ratio)}
            for row, v in zip(rows(verdicts), verdicts, strict=True)
        ],
        "left_out": [{"system": each.system, "why": each.why} for each in suite.asked.left_out],
        "variants": {name: dict(changes) for name, changes in suite.asked.variants.items()},
        "interrupted": suite.interrupted,
        "stopped": suite.stopped,
        "moved": [asdict(each) for each in suite.moved],
        "placed": {kind: list(load) for kind, load in suite.placed.loads.items()},
        "rounds": [
            {"traffic": traffic, "arm": arm, "rounds": rounds}
            for (traffic, arm), rounds in suite.played.items()
        ],
    }


def _ratio(ratio: Ratio | None) -> dict[str, float] | None:
    """None too where one pair leaves no interval."""
    if ratio is None or math.isnan(ratio.low):
        return None
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high}


def write_json(path: Path, suite: Suite, verdicts: Sequence[SuiteVerdict]) -> None:
    path.write_text(json.dumps(as_json(suite, verdicts), indent=1), encoding="utf-8")


def write_page(path: Path, suite: Suite, verdicts: Sequence[SuiteVerdict], title: str) -> None:
    """One self-contained page. It holds no prompt and no key."""
    facts = (
        f"{suite.load.requests} requests a round, {suite.load.concurrency} in flight, "
        f"{suite.starts} starts. A ratio is with the system divided by the best alternative, with "
        "a 95 % interval over paired rounds."
    )
    tiles = [(v.question.system, v.answer, v.why) for v in verdicts]
    sections = [
        ("s-answers", "On, off, or undecided", _answers(suite, verdicts)),
        ("s-arms", "Every arm", _arms(suite, verdicts)),
    ]
    if suite.moved or suite.placed.loads:
        sections.append(("s-experts", "Load between experts", _experts(suite)))
    if suite.stopped:
        sections.append(("s-stopped", "What did not run", _stopped(suite)))
    path.write_text(
        page_of(
            title,
            heading("Suite", title, facts, tiles),
            [(key, words) for key, words, _ in sections],
            [html.section(key, words, "", content) for key, words, content in sections],
            html.escape(f"Written by toolkit {__version__}."),
        ),
        encoding="utf-8",
    )


def _answers(suite: Suite, verdicts: Sequence[SuiteVerdict]) -> str:
    asked = [list(row) for row in rows(verdicts)]
    left = [[each.system, "not asked", each.why, "", "", ""] for each in suite.asked.left_out]
    return html.table("", _COLUMNS, asked + left, words=5)


def _arms(suite: Suite, verdicts: Sequence[SuiteVerdict]) -> str:
    found = []
    for verdict in verdicts:
        question = verdict.question
        for arm in question.arms:
            played = suite.played.get((question.traffic, arm.name), {})
            figures = [median(metric, played) for metric in (question.metric, question.price)]
            shown_figures = ["" if each is None else f"{each:.1f}" for each in figures]
            variant = "" if arm.variant == BASE else arm.variant
            found.append([question.system, arm.name, variant, *shown_figures, str(len(played))])
    heads = ("system", "arm", "variant of the file", "what decides", "price", "rounds")
    return html.table("medians over rounds; times in ms", heads, found, words=3)


def _experts(suite: Suite) -> str:
    """How uneven ranks were: where they are even, nothing that moves experts can pay."""
    found = [
        [
            each.variant, "live, decode", *(_balance(each.balance)), "",
            str(each.times), "" if each.longest_s is None else f"{1000 * each.longest_s:.0f}",
        ]
        for each in suite.moved
    ]  # fmt: skip
    found += [
        [f"placement {kind}", "profile's held-out tokens", f"{load:.3f}", "", f"{cut:.1%}", "", ""]
        for kind, (load, cut) in suite.placed.loads.items()
    ]
    heads = (
        "what", "seen on", "busiest rank / mean", "in the end", "hops between ranks",
        "times that experts moved", "longest standstill, ms",
    )  # fmt: skip
    return html.table("a row for each start, and for each placement", heads, found, words=2)


def _balance(found: tuple[float, float] | None) -> tuple[str, str]:
    return ("", "") if found is None else (f"{found[0]:.3f}", f"{found[1]:.3f}")


def _stopped(suite: Suite) -> str:
    found = [[name, text[-END:]] for name, text in suite.stopped.items()]
    return html.table("", ("variant of the file", "why"), found, words=2)
