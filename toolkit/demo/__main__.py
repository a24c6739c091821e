"""`python -m toolkit.demo`: start the CPU recipe, ask, measure, stop."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from types import FrameType
from typing import NoReturn

from toolkit.launch.running import Running

TOKENS = 48


def main() -> int:
    """Exit status 0 only when every request was answered and every process has ended."""
    parser = argparse.ArgumentParser(prog="python3 -m toolkit.setup demo")
    parser.add_argument("--requests", type=int, default=48, help="of the benchmark")
    parser.add_argument("--concurrency", type=int, default=4, help="of the benchmark")
    options = parser.parse_args()
    if options.requests < 1 or options.concurrency < 1:
        parser.error("--requests and --concurrency are at least 1")

    from toolkit.bench.errors import BenchError
    from toolkit.demo.ask import DemoError
    from toolkit.launch.errors import LaunchError

    _interrupt_on_terminate()
    try:
        _demo(options.requests, options.concurrency)
    except (LaunchError, DemoError, BenchError) as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nthe demo was interrupted; everything is stopped", file=sys.stderr)
        return 130
    return 0


def _interrupt_on_terminate() -> None:
    """SIGTERM stops the workers as Ctrl-C does."""
    import signal

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def _demo(requests: int, concurrency: int) -> None:
    from rich.console import Console

    from toolkit.launch.deployment import load_deployment
    from toolkit.launch.plan import resolve
    from toolkit.launch.progress import reporter_for
    from toolkit.launch.running import running
    from toolkit.launch.show import summary
    from toolkit.resources import recipes_dir

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)
    recipe = recipes_dir() / "cpu-demo.yaml"
    plan = resolve(load_deployment(recipe))
    _title(f"1. Start {recipe.name}: real SGLang workers (about a minute on two cores)")
    console.print(summary(plan))
    start = time.monotonic()
    with running(plan, reporter=reporter_for()) as deployment:
        print(f"up in {time.monotonic() - start:.0f} s: {deployment.router_url}")
        _title("2. Requests: prefill runs first, then the router chooses the decode worker")
        asyncio.run(_answer(deployment.router_url))
        _title(f"3. Benchmark: {requests} requests, {concurrency} in flight")
        _bench(console, deployment, requests, concurrency)
        _title("4. Stop")
        run_dir = deployment.run_dir
    print(f"every process has ended; plan and logs: {run_dir}")
    print("Start it yourself: .venv/bin/toolkit launch cpu-demo")


def _title(text: str) -> None:
    print(f"\n== {text}", flush=True)


async def _answer(url: str) -> None:
    import aiohttp

    from toolkit.demo.ask import ask
    from toolkit.demo.prompts import choose, shortened
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


def _bench(console: object, deployment: Running, requests: int, concurrency: int) -> None:
    from rich.console import Console

    from toolkit.bench.build import Source
    from toolkit.bench.metrics import Slo
    from toolkit.bench.report import metrics_table, summary_lines
    from toolkit.bench.runner import Load
    from toolkit.bench.session import Settings, measure

    assert isinstance(console, Console)
    settings = Settings(
        source=Source(num_requests=requests, max_tokens=32),
        load=Load("generate", concurrency=concurrency),
        slo=Slo(None, None),
    )
    report = asyncio.run(measure(deployment.router_url, settings, print))
    assert report.metrics is not None
    console.print(metrics_table(report.metrics, "through the router"))
    for line in summary_lines(report.metrics, report.workers):
        print(line)


if __name__ == "__main__":
    sys.exit(main())
