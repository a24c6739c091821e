"""`python -m toolkit.demo`: start the ELDR recipe, ask, compare policies, stop."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from types import FrameType
from typing import NoReturn

from toolkit.errors import ToolkitError
from toolkit.launch.running import Running

TOKENS = 48
BENCH_TOKENS = 96
ARMS = ("eldr", "round_robin", "shortest_queue", "power_of_two", "label_oracle")


def main() -> int:
    """Exit status 0 only when every request was answered and every process has ended."""
    parser = argparse.ArgumentParser(prog="python3 -m toolkit.setup demo")
    parser.add_argument("--requests", type=int, default=96, help="of each round and policy")
    parser.add_argument("--concurrency", type=int, default=40, help="requests in flight")
    parser.add_argument("--rounds", type=int, default=2, help="paired rounds")
    options = parser.parse_args()
    if min(options.requests, options.concurrency, options.rounds) < 1:
        parser.error("--requests, --concurrency and --rounds are at least 1")

    _interrupt_on_terminate()
    try:
        _demo(options.requests, options.concurrency, options.rounds)
    except ToolkitError as error:
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


def _demo(requests: int, concurrency: int, rounds: int) -> None:

    from toolkit.launch.deployment import load_deployment
    from toolkit.launch.progress import reporter_for
    from toolkit.launch.resolve import resolve
    from toolkit.launch.running import running
    from toolkit.launch.show import summary
    from toolkit.report import terminal
    from toolkit.resources import recipes_dir

    console = terminal.console()
    recipe = recipes_dir() / "cpu-eldr.yaml"
    plan = resolve(load_deployment(recipe))
    _title(f"1. Start {recipe.name}: five real SGLang workers (100 s on two cores)")
    terminal.show(console, summary(plan))
    start = time.monotonic()
    with running(plan, reporter=reporter_for()) as deployment:
        print(f"up in {time.monotonic() - start:.0f} s: {deployment.router_url}")
        _title(
            "2. Requests: prefill leaves a signature, the router chooses the decode worker by it"
        )
        asyncio.run(_answer(deployment.router_url))
        _title(
            f"3. ELDR against load balancers: {rounds} paired rounds of {requests} requests, "
            f"{concurrency} in flight"
        )
        _compare(console, deployment, requests, concurrency, rounds)
        _title("4. Stop")
        run_dir = deployment.run_dir
    print(f"every process has ended; plan and logs: {run_dir}")
    print("Start it yourself: .venv/bin/toolkit launch cpu-eldr")


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


def _compare(
    console: object, deployment: Running, requests: int, concurrency: int, rounds: int
) -> None:
    from rich.console import Console

    from toolkit.bench.build import Source
    from toolkit.bench.compare import Arm
    from toolkit.bench.metrics import Slo
    from toolkit.bench.ratios import arms_table
    from toolkit.bench.runner import Load
    from toolkit.bench.session import Settings, measure
    from toolkit.report import terminal

    assert isinstance(console, Console)
    settings = Settings(
        source=Source(
            num_requests=requests * rounds,
            max_tokens=BENCH_TOKENS,
            domains="code,math,medical,legal",
        ),
        load=Load("generate", concurrency=concurrency, label="language"),
        slo=Slo(None, None),
        warmup=2 * concurrency,
        arms=tuple(Arm.parse(name) for name in ARMS),
        rounds=rounds,
    )
    report = asyncio.run(measure(deployment.router_url, settings, print))
    assert report.comparison is not None
    terminal.show(console, arms_table(report.comparison))
    print(
        "TPOT in the worker is the time that a step's thread computes: five workers share the\n"
        "cores of this machine, which no fleet does, so the client's times contain the waiting."
    )


if __name__ == "__main__":
    sys.exit(main())
