"""The demo: start the ELDR recipe, ask, compare two policies, stop, say what was shown."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.bench.session import Report

TOKENS = 48
BENCH_TOKENS = 32
ARMS = ("eldr", "shortest_queue")
"""What the recipe recommends, and the strongest of the balancers that look at no expert."""
WARM_UP = 4


@dataclass(frozen=True)
class Size:
    """Of the comparison: requests of each round and policy, how many in flight, paired rounds."""

    requests: int = 32
    concurrency: int = 20
    rounds: int = 10


def demo(size: Size, page: Path | None = None) -> None:
    """Raises ToolkitError when a request was not answered as it must be, or the deployment did not
    start. `page` None: in the folder of the run."""
    from toolkit.launch.progress import reporter_for
    from toolkit.launch.resolve import resolve
    from toolkit.launch.running import running
    from toolkit.launch.show import summary
    from toolkit.report import terminal
    from toolkit.resources import recipes_dir
    from toolkit.settings.load import load_deployment

    if page is not None:
        from toolkit.bench.page import ready

        ready(page)
    console = terminal.console()
    recipe = recipes_dir() / "cpu-eldr.yaml"
    plan = resolve(load_deployment(recipe))
    _title(f"1. Start {recipe.name}: five real SGLang workers")
    terminal.show(console, summary(plan))
    start = time.monotonic()
    with running(plan, reporter=reporter_for()) as deployment:
        print(f"up in {time.monotonic() - start:.0f} s: {deployment.router_url}")
        report = play(deployment.router_url, size)
        run_dir = deployment.run_dir
        _title("4. Stop")
    print("every process has ended\n")
    conclude(console, report, page or run_dir / "demo.html", run_dir)


def play(url: str, size: Size) -> Report:
    """What the demo does with a router that is up: ask, then compare."""
    _title("2. Ask: prefill leaves a signature, by it the router chooses the decode worker")
    asyncio.run(_answer(url))
    _title(
        f"3. Compare: {' and '.join(ARMS)} in {size.rounds} rounds of {size.requests} "
        f"requests, {size.concurrency} in flight"
    )
    return asyncio.run(_compare(url, size))


def _title(text: str) -> None:
    print(f"\n== {text}", flush=True)


async def _answer(url: str) -> None:
    import aiohttp

    from toolkit.demo.ask import ask
    from toolkit.demo.chosen import choose, shortened
    from toolkit.embedded import load_prompts

    def show(piece: str) -> None:
        print(piece.replace("\n", " "), end="", flush=True)

    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for prompt in choose(load_prompts()):
            print(f"\n[{prompt.domain}, {prompt.language}] {shortened(prompt.text)}\n  -> ", end="")
            answer = await ask(session, url, prompt.text, TOKENS, show)
            print(
                f"\n  {answer.prefill} -> {answer.decode}: {answer.tokens} tokens, first after "
                f"{answer.ttft * 1e3:.0f} ms, all in {answer.seconds * 1e3:.0f} ms"
            )
    print("\n(A very small model: the routing and the speed are real, its wisdom is not.)")


async def _compare(url: str, size: Size) -> Report:
    from toolkit.bench.compare import Arm
    from toolkit.bench.metrics import Slo
    from toolkit.bench.runner import BenchLoad
    from toolkit.bench.session import Settings, measure
    from toolkit.bench.source import Source

    settings = Settings(
        source=Source(
            num_requests=size.requests * size.rounds,
            max_tokens=BENCH_TOKENS,
            domains="code,math,medical,legal",
        ),
        load=BenchLoad("generate", concurrency=size.concurrency),
        slo=Slo(None, None),
        warmup=WARM_UP,
        arms=tuple(Arm.parse(name) for name in ARMS),
        rounds=size.rounds,
    )
    return await measure(url, settings, print)


def conclude(console: Console, report: Report, page: Path, run_dir: Path) -> None:
    """Write the page; print the table, and in ten lines what it shows and where more is."""
    from toolkit.bench.page import write
    from toolkit.bench.ratios import verdict_table
    from toolkit.report import terminal

    write(page, report, f"Demo: {' against '.join(ARMS)}")
    assert report.comparison is not None
    terminal.show(console, verdict_table(report.comparison))
    for line in last_lines(report, _shortest(page), _shortest(run_dir)):
        print(line)


def last_lines(report: Report, page: str, run_dir: str) -> list[str]:
    """At most ten."""
    from toolkit.bench.verdict import findings, shown

    comparison = report.comparison
    assert comparison is not None
    ours, theirs = (arm.text for arm in comparison.arms)
    lines = [f"What was shown: {ours} against {theirs}, {len(comparison.rounds[0])} paired rounds"]
    lines += [f"  {each.sentence}" for each in shown(findings(comparison))]
    return [
        *lines,
        "95 % intervals over rounds. Times at the client contain waits for shared cores.",
        f"The page: {page}",
        f"Plan and logs: {run_dir}",
        "Start it yourself: .venv/bin/toolkit launch cpu-eldr",
    ]


def _shortest(path: Path) -> str:
    """From the home folder where it is there."""
    with suppress(ValueError, RuntimeError):
        return f"~/{path.resolve().relative_to(Path.home())}"
    return str(path)
