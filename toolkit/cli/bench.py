"""`toolkit bench`: measure a deployment, or compare policies on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from toolkit.cli.bench_options import Judged, LoadOptions, OutputOptions, Played, Where
from toolkit.cli.bench_repeats import Repeated
from toolkit.cli.grouped import grouped
from toolkit.cli.suite import suite

if TYPE_CHECKING:
    from toolkit.bench.session import Report, Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None, invoke_without_command=True)
app.command()(suite)


@app.callback()
@grouped
def bench(
    context: typer.Context,
    where: Where,
    sent: LoadOptions,
    played: Played,
    repeated: Repeated,
    judged: Judged,
    written: OutputOptions,
) -> None:
    """Measure TTFT, TPOT, ITL, E2E, throughput and goodput of a deployment, and inside its decode
    workers distinct experts, batch size, KV tokens, step time and TPOT.

    A run that made no tokens, lost requests or lost a worker is an error (exit code 1), not a
    result. Without --rate or --open-loop the loop is closed. On CPU a worker's times are given
    twice: by the wall, and on a core of its own (the CPU time of the thread that ran the steps),
    since busy workers may share cores here.
    """
    from toolkit.bench.errors import BenchError
    from toolkit.bench.session import Settings

    if context.invoked_subcommand is not None:
        return
    try:
        arms = judged.arms()
        source = sent.source(played.endpoint)
        swept = repeated.range()
        is_open = sent.open_loop or sent.rate is not None or any(p.rate for p in source.phases)
        is_open |= swept is not None
        settings = Settings(
            source=source,
            load=played.load(is_open, source.turns == "served"),
            slo=judged.slo(),
            warmup=played.warmup,
            arms=arms,
            rounds=judged.rounds,
            api_key=where.secret(),
            runs=1 if swept or repeated.runs is None else repeated.runs,
            sweep=swept,
        )
        if written.page is not None:
            from toolkit.bench.page import ready

            ready(written.page)
        with where.routers() as urls:
            report = _measure(urls, settings)
        _show(report, written)
    except BenchError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error


def _measure(urls: Sequence[str], settings: Settings) -> Report:
    import uvloop

    from toolkit.bench.session import measure

    url, *others = urls
    said = measure(url, settings, lambda line: typer.echo(line, err=True), others)
    result: Report = uvloop.run(said)
    return result


def _show(report: Report, written: OutputOptions) -> None:
    import time

    from toolkit.bench.ratios import arms_table, class_tables, ratio_tables, verdict_table
    from toolkit.bench.repeats import runs_table, sweep_lines, sweep_table
    from toolkit.bench.report import (
        balance_lines,
        decode_table,
        group_tables,
        metrics_table,
        phase_table,
        summary_lines,
        turn_table,
        write_json,
    )
    from toolkit.report.terminal import console as made
    from toolkit.report.terminal import show

    console = made()
    if report.metrics is not None:
        name = report.document["workload"]["name"]
        table = runs_table(report.runs) if report.runs else metrics_table(report.metrics, name)
        show(console, table)
        for line in summary_lines(report.metrics, report.workers):
            console.print(line, highlight=False)
        if report.decode is not None:
            show(console, decode_table(report.metrics, report.decode))
            for line in balance_lines(report.metrics):
                console.print(line, highlight=False)
        if report.phases is not None:
            show(console, phase_table(report.phases))
        if report.turns is not None:
            show(console, turn_table(report.turns))
        for table in group_tables(report.groups, len(report.runs) or 1):
            show(console, table)
    if report.swept is not None:
        for curve in report.swept.curves:
            show(console, sweep_table(curve))
        for line in sweep_lines(report.swept):
            console.print(line, highlight=False)
    if report.comparison is not None:
        arms = len(report.comparison.arms)
        verdicts = [verdict_table(report.comparison, other) for other in range(1, arms)]
        for table in (
            *ratio_tables(report.comparison),
            arms_table(report.comparison),
            *class_tables(report.comparison),
            *verdicts,
        ):
            show(console, table)
        if not report.comparison.flushed:
            console.print("note: a worker did not empty its prefix cache between the rounds")
    for remark in report.remarks:
        console.print(f"note: {remark}", highlight=False)
    default = Path.home() / ".cache/toolkit/bench" / time.strftime("%Y%m%d-%H%M%S.json")
    path = written.output or default
    write_json(path, report.document)
    console.print(f"written to {path}", highlight=False, soft_wrap=True)
    if written.page is not None:
        from toolkit.bench.page import write

        write(written.page, report)
        console.print(f"page: {written.page}", highlight=False, soft_wrap=True)
