"""`toolkit doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from toolkit.doctor.finding import Finding
    from toolkit.doctor.recipes import Verdict

_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
    full: bool = typer.Option(False, "--full", help="Have SGLang check every recipe (minutes)."),
) -> None:
    """Say what this machine can run and what is missing. Exit status 1: not even the CPU demo."""
    from toolkit.doctor import machine, recipes, runs, software

    findings = [*machine.examine(), *software.examine(), *runs.examine()]
    verdicts = recipes.examine(full=full)
    if as_json:
        _print_json(findings, verdicts)
    else:
        _show(findings, verdicts)
    demo = next((verdict for verdict in verdicts if verdict.recipe == "cpu-demo.yaml"), None)
    if demo is None or demo.why or any(finding.level == "missing" for finding in findings):
        raise typer.Exit(1)


def _print_json(findings: list[Finding], verdicts: list[Verdict]) -> None:
    import json
    from dataclasses import asdict

    report = {
        "findings": [asdict(finding) for finding in findings],
        "recipes": [asdict(verdict) | {"runs_here": not verdict.why} for verdict in verdicts],
    }
    print(json.dumps(report, indent=1))


def _show(findings: list[Finding], verdicts: list[Verdict]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from toolkit.report.terminal import console as made
    from toolkit.report.terminal import show

    console = made()
    table = Table(title="This machine", title_justify="left")
    for heading in ("", "", "found", "what to do"):
        table.add_column(heading)
    for finding in findings:
        mark = _MARKS[finding.level]
        table.add_row(finding.topic, mark, escape(finding.what), escape(finding.mend))
    show(console, table)
    recipes = Table(title="Recipes (toolkit launch NAME)", title_justify="left")
    for heading in ("recipe", "device", "runs here", "why not"):
        recipes.add_column(heading)
    for verdict in verdicts:
        name = verdict.recipe.removesuffix(".yaml")
        mark = "[yellow]no[/]" if verdict.why else "[green]yes[/]"
        recipes.add_row(name, verdict.device, mark, escape("; ".join(verdict.why)))
    show(console, recipes)
    console.print("Every recipe's `--dry-run` shows its plan, also where it cannot run.")
