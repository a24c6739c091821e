"""`toolkit bench suite`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from toolkit.bench.suite.play import Hosts, Suite
    from toolkit.bench.suite.traffic import SuiteLoad
    from toolkit.bench.suite.verdicts import SuiteVerdict


def suite(
    file: Annotated[
        str | None, typer.Argument(help="Deployment file, or a recipe's name.", show_default=False)
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="In place of a file: a router that runs; again for each more over the same "
            "workers: requests go to all in turn. Nothing is started; asked is what they can be "
            "switched to.",
            show_default=False,
        ),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the key of their admin.")
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(
            help="Ask about this system alone, by its name in the table. May be given often.",
            show_default="all that can be asked",
        ),
    ] = None,
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
    the figures, and of a file a deployment file with what pays turned on.
    """
    from toolkit.bench.errors import BenchError
    from toolkit.bench.source import Source
    from toolkit.bench.suite.traffic import SuiteLoad

    source = Source(prompts=prompts, max_tokens=max_tokens, seed=seed)
    load = SuiteLoad(source, requests, concurrency, rounds)
    folder = _place(out)
    try:
        if (file is None) == (not url):
            raise BenchError("say what to measure: a deployment FILE, or --url URL")
        if url:
            asking, host, name = _of_routers(url, api_key_env, load, folder, minutes)
        else:
            assert file is not None
            asking, host, name = _of_file(file, load, folder, minutes)
        asking.asked.only(system or ())
        _make(folder)
        asking.run(host, lambda line: typer.echo(line, err=True))
    except (BenchError, ValueError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        if (folder / "suite.json").exists():
            typer.echo(f"what was measured before is in {folder / 'suite.json'}", err=True)
        raise typer.Exit(1) from error
    _show(asking, folder, name)


def _place(out: Path | None) -> Path:
    """Where results go."""
    import time

    return out or Path.home() / ".cache/toolkit/suite" / time.strftime("%Y%m%d-%H%M%S")


def _make(folder: Path) -> None:
    """BenchError: it cannot be written to."""
    from toolkit.bench.errors import BenchError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"cannot write to {folder}: {error.strerror}") from error


def _of_file(file: str, load: SuiteLoad, folder: Path, minutes: float) -> tuple[Suite, Hosts, str]:
    from toolkit.bench.hosted import hosted
    from toolkit.bench.suite.placements import place_experts
    from toolkit.bench.suite.play import Suite
    from toolkit.bench.suite.questions import questions_for
    from toolkit.cli.launch import find_file
    from toolkit.settings.document import absolute, normal
    from toolkit.settings.load import load_deployment
    from toolkit.settings.yaml_lines import read_document

    path = find_file(file)
    deployment = load_deployment(path)  # its own errors come first
    document = absolute(normal(read_document(path)[0]), path.resolve().parent)
    questions_for(document)
    _make(folder)
    placed = place_experts(deployment, folder)
    asked = questions_for(document, placed=placed)
    return Suite(document, asked, load, folder, minutes, placed=placed), hosted, path.stem


def _of_routers(
    urls: list[str], api_key_env: str | None, load: SuiteLoad, folder: Path, minutes: float
) -> tuple[Suite, Hosts, str]:
    from toolkit.bench.suite.as_it_runs import AsItRuns, questions_at
    from toolkit.bench.suite.play import Suite
    from toolkit.cli.bench_options import Where

    key = Where(urls, None, api_key_env).secret()
    host = AsItRuns([url.rstrip("/") for url in urls], key)
    asked = questions_at(host.states()[0])
    return Suite({}, asked, load, folder, minutes, key), host, ", ".join(urls)


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
    files = {"page": folder / "suite.html", "figures": folder / "suite.json"}
    write_page(files["page"], asking, verdicts, f"Does it pay for {name}?")
    write_json(files["figures"], asking, verdicts)
    if asking.document:
        files["deployment"] = folder / f"{name}.yaml"
        write_deployment(files["deployment"], asking, verdicts)
    for what, path in files.items():
        console.print(f"{what}: {path}", highlight=False, soft_wrap=True)
