"""`toolkit bench suite`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from toolkit.bench.suite.play import Suite
    from toolkit.bench.suite.verdicts import SuiteVerdict


def suite(
    file: Annotated[str, typer.Argument(help="Deployment file, or a recipe's name.")],
    minutes: Annotated[
        float, typer.Option(help="Start nothing after so long; what was measured counts.")
    ] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for page, figures and the deployment file.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Your own prompts, as `toolkit bench --prompts` takes them.")
    ] = None,
    requests: Annotated[int, typer.Option(min=4, help="Requests of one round.")] = 24,
    concurrency: Annotated[int, typer.Option(min=1, help="Of them in flight at a time.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens of a request.")] = 48,
    rounds: Annotated[int, typer.Option(min=4, help="Pairs of rounds at most.")] = 12,
    seed: Annotated[int, typer.Option(help="Of the requests that are drawn.")] = 0,
) -> None:
    """Does each system pay here? Starts the deployment without and with each of them in turn, and
    says on, off or undecided against the strongest alternative.

    Every variant is started, measured and stopped, there and back again, until all questions are
    decided or the time is over. Ctrl-C ends it early and keeps what was measured. It writes a page,
    the figures, and a deployment file with what pays turned on.
    """
    import time

    from toolkit.bench.errors import BenchError
    from toolkit.bench.hosted import hosted
    from toolkit.bench.source import Source
    from toolkit.bench.suite.play import Suite
    from toolkit.bench.suite.questions import questions_for
    from toolkit.bench.suite.traffic import SuiteLoad
    from toolkit.bench.suite.written import absolute
    from toolkit.cli.launch import find_file
    from toolkit.settings.load import load_deployment
    from toolkit.settings.yaml_lines import read_document

    path = find_file(file)
    load_deployment(path)  # its own errors come first
    folder = out or Path.home() / ".cache/toolkit/suite" / time.strftime("%Y%m%d-%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        typer.secho(f"error: cannot write to {folder}: {error.strerror}", fg="red", err=True)
        raise typer.Exit(1) from error
    document = absolute(read_document(path)[0], path.resolve().parent)
    source = Source(prompts=prompts, max_tokens=max_tokens, seed=seed)
    try:
        asked = questions_for(document)
        asking = Suite(
            document, asked, SuiteLoad(source, requests, concurrency, rounds), folder, minutes
        )
        asking.run(hosted, lambda line: typer.echo(line, err=True))
    except (BenchError, ValueError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        if (folder / "suite.json").exists():
            typer.echo(f"what was measured before is in {folder / 'suite.json'}", err=True)
        raise typer.Exit(1) from error
    _show(asking, folder, path.stem)


def _show(asking: Suite, folder: Path, name: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from toolkit.bench.suite.written import rows, write_deployment, write_json, write_page
    from toolkit.report.terminal import console as made
    from toolkit.report.terminal import show

    verdicts: list[SuiteVerdict] = asking.verdicts()
    console = made()
    table = Table(title=f"Does it pay for {name}?", title_justify="left")
    for head in ("system", "answer", "why", "against", "price", "pairs"):
        table.add_column(head, overflow="fold")
    for row in rows(verdicts):
        table.add_row(*map(escape, row))
    for each in asking.asked.left_out:
        table.add_row(each.system, "not asked", escape(each.why))
    show(console, table)
    files = {
        "page": folder / "suite.html",
        "figures": folder / "suite.json",
        "deployment": folder / f"{name}.yaml",
    }
    write_page(files["page"], asking, verdicts, f"Does it pay for {name}?")
    write_json(files["figures"], asking, verdicts)
    write_deployment(files["deployment"], asking, verdicts)
    for what, path in files.items():
        console.print(f"{what}: {path}", highlight=False, soft_wrap=True)
