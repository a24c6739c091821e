"""A run or a comparison as one self-contained page. It holds no prompt and no key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import __version__
from toolkit.bench import page_comparison, page_run, page_sweep
from toolkit.bench.errors import BenchError
from toolkit.bench.page_parts import PageSection
from toolkit.report import html
from toolkit.report.numbers import plural
from toolkit.report.skeleton import document, heading

if TYPE_CHECKING:
    from toolkit.bench.session import Report


def ready(path: Path) -> None:
    """Before a run that takes minutes. BenchError: no file can be written there."""
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if not path.stat().st_size:
            path.unlink()


def write(path: Path, report: Report, title: str = "") -> None:
    """BenchError: as `ready`."""
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(report, title), encoding="utf-8")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise BenchError(f"cannot write the page {path}: {why}; name another file") from error


def render(report: Report, title: str = "") -> str:
    """The whole page of what `toolkit bench` or the demo found."""
    kind = "Sweep" if report.swept else "Comparison" if report.comparison else "Benchmark"
    load = report.document["load"]
    way = "open loop" if load["open_loop"] else f"{load['concurrency']} in flight"
    way += f", {plural(len(report.runs), 'run')}" if report.runs else ""
    facts = f"Workload {report.document['workload']['name']}, {way}, on {report.document['url']}."
    if report.swept is not None:
        keys, sections = page_sweep.keys(report.swept), list(page_sweep.sections(report.swept))
    elif report.comparison is None:
        keys, sections = page_run.keys(report), list(page_run.sections(report))
    else:
        keys = page_comparison.keys(report.comparison)
        sections = list(page_comparison.sections(report.comparison))
    if report.remarks:
        notes = "".join(f"<li>{html.escape(remark)}</li>" for remark in report.remarks)
        sections.append(PageSection.of("b-notes", "Notes", "", f'<ul class="said">{notes}</ul>'))
    setting = _setting(report.document)
    sections.append(PageSection.of("b-how", "How it was measured", "", setting))
    title = title or _title(report)
    return document(
        title,
        heading(kind, title, facts, keys),
        [(section.key, section.title) for section in sections],
        [section.content for section in sections],
        html.escape(f"Written by toolkit {__version__}."),
    )


def _title(report: Report) -> str:
    if report.swept is not None and len(report.swept.curves) > 1:
        return " against ".join(curve.name for curve in report.swept.curves)
    if report.comparison is None:
        return f"{report.document['model']} under load"
    return " against ".join(arm.text for arm in report.comparison.arms)


def _setting(facts: dict[str, Any]) -> str:
    """What it takes to run it again, and what it ran on."""
    machine, load = facts["machine"], facts["load"]
    rows = [
        ["date", facts["date"]],
        ["machine", f"{machine['cpus']} CPUs, load average {machine['load_average']:.1f} at the "
         f"end, {machine['system']}"],
        ["versions", ", ".join(f"{k} {v}" for k, v in facts["versions"].items() if v)],
        ["model", facts["model"]],
        ["workload", f"{facts['workload']['requests']} requests, hash {facts['workload']['hash']}"],
        ["load", _plain(load)],
        ["source", _plain(facts["source"])],
    ]  # fmt: skip
    if objective := _plain(facts["slo"]):
        rows.append(["SLO", objective])
    if facts.get("sweep"):
        rows.append(["sweep", _plain(facts["sweep"]["range"])])
    if facts.get("policies"):
        rows.append(["policies", _plain(facts["policies"])])
    return html.table("", ("", ""), rows, words=2, cls="setting")


def _plain(values: dict[str, Any]) -> str:
    """Options that were given or have a default, as NAME VALUE."""
    kept = {k: v for k, v in values.items() if v not in (None, "None", False, (), "", [])}
    return ", ".join(
        f"{name.replace('_', ' ')} {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in kept.items()
    )
