"""`toolkit recipes`."""

from __future__ import annotations

import typer


def recipes(as_json: bool = typer.Option(False, "--json", help="Print as JSON.")) -> None:
    """List the shipped deployment files: what each starts, and which systems it turns on."""
    from toolkit.launch.recipes import shipped

    found = shipped()
    if as_json:
        import json
        from dataclasses import asdict

        print(json.dumps([asdict(recipe) for recipe in found], indent=1))
        return
    from rich.markup import escape
    from rich.table import Table

    from toolkit.report.terminal import console as made
    from toolkit.report.terminal import show

    console = made()
    table = Table(title="Recipes (toolkit launch NAME)", title_justify="left", show_lines=True)
    for heading in ("recipe", "device", "starts", "systems that are on"):
        table.add_column(heading, overflow="fold")
    for recipe in found:
        table.add_row(recipe.name, recipe.device, escape(recipe.starts), ", ".join(recipe.systems))
    show(console, table)
    console.print(
        "`toolkit launch NAME --dry-run` shows a plan; the file says why each line is there."
    )
