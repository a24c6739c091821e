"""`toolkit replay`: what another policy would have decided on a record of a running router."""

from pathlib import Path
from typing import Annotated

import typer


def replay(
    record: Annotated[
        Path, typer.Argument(help="A record of decisions (.jsonl; Policies says how to make one).")
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            help="A policy to play beside the recorded one [default: the recorded one again, which "
            "must decide the same]."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the policy's ties.")] = 0,
    output: Annotated[Path | None, typer.Option(help="JSON file for all figures.")] = None,
    report: Annotated[Path | None, typer.Option(help="HTML page: balance, ranks, figures.")] = None,
) -> None:
    """Play a record of decisions again, or another policy beside it: what-if without a GPU.

    The other policy sees the same arrivals and the load that its own choices make. How long a
    request runs is as recorded.
    """
    from toolkit.decide.replay import main as again
    from toolkit.errors import ToolkitError

    if policy is None:
        if output or report:
            raise ToolkitError("--output and --report compare two policies: name one with --policy")
        try:
            status = again([str(record)])
        except (OSError, ValueError) as error:
            raise ToolkitError(f"{record}: {error}") from error
        raise typer.Exit(status)
    _compare(record, policy, seed, output, report)


def _compare(
    record: Path, policy: str, seed: int, output: Path | None, report: Path | None
) -> None:
    import json

    from rich.markup import escape
    from rich.table import Table

    from toolkit.bounded_files import lines_of
    from toolkit.decide.what_if import what_if
    from toolkit.errors import ToolkitError
    from toolkit.replay import page, tables
    from toolkit.report import terminal

    try:
        with record.open(encoding="utf-8") as lines:
            found = what_if(lines_of(lines), policy, seed)
    except (OSError, ValueError) as error:
        raise ToolkitError(f"{record}: {error}") from error
    console = terminal.console()
    console.print(escape(tables.facts(found)))
    table = Table("", found.recorded.name, found.other.name)
    for row in tables.figures(found):
        table.add_row(*map(escape, row))
    terminal.show(console, table)
    if output is not None:
        output.write_text(json.dumps(tables.plain(found), indent=2) + "\n", encoding="utf-8")
    if report is not None:
        title = f"{found.recorded.name} and {found.other.name}"
        report.write_text(page.render(found, title), encoding="utf-8")
        console.print(f"look at {escape(str(report))}")
