"""`toolkit doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from toolkit.doctor.finding import Finding
    from toolkit.doctor.recipes import RecipeCheck

_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
    full: bool = typer.Option(False, "--full", help="Have SGLang check every recipe (minutes)."),
) -> None:
    """Say what this machine can run and what is missing. Exit status 1: not even the CPU demo."""
    from toolkit.doctor import machine, recipes, runs, software

    findings = [*machine.examine(), *software.examine(), *runs.examine()]
    recipe_checks = recipes.examine(full=full)
    if as_json:
        _print_json(findings, recipe_checks)
    else:
        _show(findings, recipe_checks)
    demo = next(
        (recipe_check for recipe_check in recipe_checks if recipe_check.recipe == "cpu-demo.yaml"),
        None,
    )
    if demo is None or demo.why or any(finding.level == "missing" for finding in findings):
        raise typer.Exit(1)


def _print_json(findings: list[Finding], recipe_checks: list[RecipeCheck]) -> None:
    import json
    from dataclasses import asdict

    report = {
        "findings": [asdict(finding) for finding in findings],
        "recipes": [
            asdict(recipe_check) | {"runs_here": not recipe_check.why}
            for recipe_check in recipe_checks
        ],
    }
    print(json.dumps(report, indent=1))


def _show(findings: list[Finding], recipe_checks: list[RecipeCheck]) -> None:
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
        table.add_row(finding.topic, mark, escape(finding.what), escape(finding.repair))
    show(console, table)
    recipes = Table(title="Recipes (toolkit launch NAME)", title_justify="left")
    for heading in ("recipe", "device", "runs here", "why not"):
        recipes.add_column(heading)
    for recipe_check in recipe_checks:
        name = recipe_check.recipe.removesuffix(".yaml")
        mark = "[yellow]no[/]" if recipe_check.why else "[green]yes[/]"
        recipes.add_row(name, recipe_check.device, mark, escape("; ".join(recipe_check.why)))
    show(console, recipes)
    console.print("Every recipe's `--dry-run` shows its plan, also where it cannot run.")
