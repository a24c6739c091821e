"""`toolkit bench`: measure a deployment, or compare policies on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from toolkit.bench.session import Report, Settings


def bench(
    url: Annotated[str | None, typer.Option(help="Router (or SGLang server) that is up.")] = None,
    deployment: Annotated[
        Path | None, typer.Option(help="Deployment file to start, measure and stop.")
    ] = None,
    endpoint: Annotated[str, typer.Option(help="generate, chat or completions.")] = "generate",
    num_requests: Annotated[
        int, typer.Option(help="Requests in all (with --phase: each phase says its own).")
    ] = 64,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Output tokens a request [default: 32; for traces: as recorded]."),
    ] = None,
    domains: Annotated[str, typer.Option(help="Prompt mix, as code:2,math:1.")] = "all",
    languages: Annotated[str, typer.Option(help="Language mix, as en:3,zh:1.")] = "all",
    phase: Annotated[
        list[str] | None,
        typer.Option(
            help="A mix that follows the one before, as 'requests=200 languages=en:1,zh:1'; may "
            "also have domains=, max_tokens= and rate=. Repeat it for each."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Tell the router each request's domain, language or cell (domain/language), for "
            "the policy label_oracle."
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Azure CSV, Mooncake JSONL or lengths CSV (.gz is fine).")
    ] = None,
    scale_lengths: Annotated[
        str, typer.Option(help="Factor for a trace's lengths; auto: fit the model's context.")
    ] = "1.0",
    max_input: Annotated[int | None, typer.Option(help="Clip a trace's inputs, tokens.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Model folder for traces [default: what the server names].")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Open loop with Poisson arrivals, requests/s.")
    ] = None,
    speedup: Annotated[float, typer.Option(help="Play arrivals so many times faster.")] = 1.0,
    open_loop: Annotated[
        bool, typer.Option("--open-loop", help="Send at the trace's own arrival times.")
    ] = False,
    concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: requests in flight [default: 4]; open: a cap.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of prompts, arrivals and order of rounds.")] = 0,
    stop_at_eos: Annotated[
        bool, typer.Option("--stop-at-eos", help="Let answers end early [default: full length].")
    ] = False,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="Goodput: TTFT limit.")] = None,
    slo_tpot_ms: Annotated[float | None, typer.Option(help="Goodput: TPOT limit.")] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare in paired rounds: A,B[,C]; each is "
            "[late:|concurrent:][PREFILL+]DECODE, as eldr, eldr@0.05 or late:shortest_queue. "
            "Ratios are A's to each other one's."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Paired rounds of a comparison.")] = 6,
    warmup: Annotated[int, typer.Option(help="Requests sent first and not counted.")] = 2,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the router's API key.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="JSON file [default: ~/.cache/toolkit/bench/DATE.json].")
    ] = None,
) -> None:
    """Measure TTFT, TPOT, ITL, E2E, throughput and goodput of a deployment, and inside its decode
    workers distinct experts, batch size, KV tokens, step time and TPOT.

    A run that made no tokens, lost requests or lost a worker is an error (exit code 1), not a
    result. Without --rate or --open-loop the loop is closed. On CPU a worker's times are given
    twice: by the wall, and on a core of its own (the CPU time of the thread that ran the steps),
    since busy workers may share cores here.
    """
    from toolkit.bench.build import Source
    from toolkit.bench.errors import BenchError
    from toolkit.bench.metrics import Slo
    from toolkit.bench.phases import Phase
    from toolkit.bench.runner import Load
    from toolkit.bench.session import Settings

    try:
        arms = _arms(compare, rounds)
        if endpoint not in ("generate", "chat", "completions"):
            raise BenchError(f"--endpoint is generate, chat or completions, not {endpoint!r}")
        if label not in (None, "domain", "language", "cell"):
            raise BenchError(f"--label is domain, language or cell, not {label!r}")
        phases = tuple(Phase.parse(text) for text in phase or ())
        is_open = open_loop or rate is not None or any(each.rate for each in phases)
        if concurrency is not None and concurrency < 1:
            raise BenchError("--concurrency must be at least 1")
        settings = Settings(
            source=Source(
                num_requests=num_requests,
                seed=seed,
                max_tokens=max_tokens,
                domains=domains,
                languages=languages,
                trace=trace,
                scale=_factor(scale_lengths),
                max_input=max_input,
                rate=rate,
                speedup=speedup,
                tokenizer=tokenizer,
                as_text=endpoint == "chat",
                phases=phases,
            ),
            load=Load(
                endpoint=endpoint,  # type: ignore[arg-type]  # checked above
                open_loop=is_open,
                concurrency=concurrency if is_open else concurrency or 4,
                ignore_eos=not stop_at_eos,
                label=label,  # type: ignore[arg-type]  # checked above
            ),
            slo=Slo(slo_ttft_ms, slo_tpot_ms),
            warmup=warmup,
            arms=arms,
            rounds=rounds,
            api_key=_secret(api_key_env),
        )
        with _router(url, deployment) as router_url:
            report = _measure(router_url, settings)
    except BenchError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
    _show(report, output)


def _arms(text: str | None, rounds: int) -> tuple:
    from toolkit.bench.compare import Arm
    from toolkit.bench.errors import BenchError

    if text is None:
        return ()
    arms = tuple(Arm.parse(part) for part in text.split(","))
    if len(arms) < 2 or len({arm.text for arm in arms}) < len(arms):
        raise BenchError("--compare needs two or more different policies, as A,B")
    if rounds < 2:
        raise BenchError("--rounds must be at least 2: one round has no interval")
    return arms


def _factor(text: str) -> float | None:
    from toolkit.bench.errors import BenchError

    if text == "auto":
        return None
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if factor <= 0:
        raise BenchError(f"--scale-lengths is a number above 0 or auto, not {text!r}")
    return factor


def _secret(variable: str | None) -> str | None:
    import os

    from toolkit.bench.errors import BenchError

    if variable is None:
        return None
    if not os.environ.get(variable):
        raise BenchError(f"--api-key-env: the environment variable {variable} is not set")
    return os.environ[variable]


@contextmanager
def _router(url: str | None, deployment: Path | None) -> Iterator[str]:
    """The URL to measure; a deployment that was started here is stopped on the way out."""
    from toolkit.bench.errors import BenchError

    if (url is None) == (deployment is None):
        raise BenchError("say what to measure: either --url URL or --deployment FILE.yaml")
    if url is not None:
        yield url
        return
    assert deployment is not None
    from toolkit.bench.hosted import hosted

    typer.echo(f"starting {deployment} (about a minute on two cores)", err=True)
    with hosted(deployment) as up:
        yield up.router_url


def _measure(url: str, settings: Settings) -> Report:
    import uvloop

    from toolkit.bench.session import measure

    return uvloop.run(measure(url, settings, lambda line: typer.echo(line, err=True)))


def _show(report: Report, output: Path | None) -> None:
    import time

    from toolkit.bench.ratios import arms_table, ratio_tables
    from toolkit.bench.report import (
        balance_lines,
        decode_table,
        metrics_table,
        phase_table,
        summary_lines,
        write_json,
    )
    from toolkit.report.terminal import console as made
    from toolkit.report.terminal import show

    console = made()
    if report.metrics is not None:
        show(console, metrics_table(report.metrics, report.document["workload"]["name"]))
        for line in summary_lines(report.metrics, report.workers):
            console.print(line, highlight=False)
        if report.decode is not None:
            show(console, decode_table(report.metrics, report.decode))
            for line in balance_lines(report.metrics):
                console.print(line, highlight=False)
        if report.phases is not None:
            show(console, phase_table(report.phases))
    if report.comparison is not None:
        for table in (*ratio_tables(report.comparison), arms_table(report.comparison)):
            show(console, table)
        if not report.comparison.flushed:
            console.print("note: a worker did not empty its prefix cache between the rounds")
    for remark in report.remarks:
        console.print(f"note: {remark}", highlight=False)
    default = Path.home() / ".cache/toolkit/bench" / time.strftime("%Y%m%d-%H%M%S.json")
    path = output or default
    write_json(path, report.document)
    console.print(f"written to {path}", highlight=False, soft_wrap=True)
