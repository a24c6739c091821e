"""The options of `toolkit bench`, by what they are about. Each group makes what the benchmark
takes, and says which of its options is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from toolkit.bench.compare import Arm
    from toolkit.bench.metrics import Slo
    from toolkit.bench.runner import BenchLoad
    from toolkit.bench.source import Source


@dataclass(frozen=True)
class Where:
    """What is measured."""

    url: Annotated[
        list[str] | None,
        typer.Option(
            help="Router (or SGLang server) that is up; again for each more over the same workers: "
            "requests go to all in turn."
        ),
    ] = None
    deployment: Annotated[
        Path | None, typer.Option(help="Deployment file to start, measure and stop.")
    ] = None
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the router's API key.")
    ] = None

    @contextmanager
    def routers(self) -> Iterator[Sequence[str]]:
        """The URLs to measure; a deployment that was started here is stopped on the way out."""
        from toolkit.bench.errors import BenchError

        if (not self.url) == (self.deployment is None):
            raise BenchError("say what to measure: either --url URL or --deployment FILE.yaml")
        if self.url:
            yield self.url
            return
        assert self.deployment is not None
        from toolkit.bench.hosted import hosted

        typer.echo(f"starting {self.deployment} (about a minute on two cores)", err=True)
        with hosted(self.deployment) as up:
            yield up.router_urls

    def secret(self) -> str | None:
        """The router's key. BenchError: the variable is not set."""
        import os

        from toolkit.bench.errors import BenchError

        if self.api_key_env is None:
            return None
        if not os.environ.get(self.api_key_env):
            raise BenchError(
                f"--api-key-env: the environment variable {self.api_key_env} is not set"
            )
        return os.environ[self.api_key_env]


@dataclass(frozen=True)
class LoadOptions:
    """What is sent, and when."""

    num_requests: Annotated[
        int | None,
        typer.Option(
            help="Requests in all [default: 64; with --prompts each prompt once]; with --phase "
            "each phase says its own."
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Your own prompts, UTF-8: a text file with one a line, JSON lines with prompt, "
            "text, messages (OpenAI chat or batch file) or conversations, or a ShareGPT JSON file "
            "(.gz is fine); rows may have domain, language, user, class and output_tokens "
            "[default: the project's prompts]."
        ),
    ] = None
    turns: Annotated[
        str,
        typer.Option(
            help="Of a conversation in --prompts: one (request a row), or every turn with the "
            "history so far, whose answers are recorded (the file's, the same for every policy) "
            "or served (those just given). Then --num-requests, --concurrency and --rate count "
            "conversations."
        ),
    ] = "one"
    think_time: Annotated[
        float,
        typer.Option(help="Mean seconds between an answer and the next turn (exponential)."),
    ] = 0.0
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Output tokens a request [default: as its line of --prompts or the trace says, "
            "else 32]."
        ),
    ] = None
    domains: Annotated[str, typer.Option(help="Prompt mix, as code:2,math:1.")] = "all"
    languages: Annotated[str, typer.Option(help="Language mix, as en:3,zh:1.")] = "all"
    phase: Annotated[
        list[str] | None,
        typer.Option(
            help="A mix that follows the one before, as 'requests=200 languages=en:1,zh:1'; may "
            "also have domains=, max_tokens= and rate=. Repeat it for each."
        ),
    ] = None
    trace: Annotated[
        Path | None, typer.Option(help="Azure CSV, Mooncake JSONL or lengths CSV (.gz is fine).")
    ] = None
    scale_lengths: Annotated[
        str, typer.Option(help="Factor for a trace's lengths; auto: fit the model's context.")
    ] = "1.0"
    max_input: Annotated[int | None, typer.Option(help="Clip a trace's inputs, tokens.")] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Model folder for traces and --prompts [default: what the server names]."
        ),
    ] = None
    rate: Annotated[
        float | None, typer.Option(help="Open loop with Poisson arrivals, requests/s.")
    ] = None
    speedup: Annotated[float, typer.Option(help="Play arrivals so many times faster.")] = 1.0
    open_loop: Annotated[
        bool, typer.Option("--open-loop", help="Send at the trace's own arrival times.")
    ] = False
    ls_share: Annotated[
        float | None,
        typer.Option(
            help="Share of requests (or conversations), 0 to 1, that are latency_sensitive; the "
            "others are best_effort. The router is told in the header x-toolkit-class, and "
            "figures are given by class."
        ),
    ] = None
    seed: Annotated[
        int, typer.Option(help="Seed of prompts, arrivals, classes and order of rounds.")
    ] = 0

    def source(self, endpoint: str) -> Source:
        """BenchError: a phase, a factor, a share, turns or a think time that is none."""
        from toolkit.bench.conversations import TURNS
        from toolkit.bench.errors import BenchError
        from toolkit.bench.phases import TrafficPhase
        from toolkit.bench.source import Source

        if self.turns not in TURNS:
            raise BenchError(f"--turns is one, recorded or served, not {self.turns!r}")
        if not self.think_time >= 0:
            raise BenchError(f"--think-time is 0 s or more, not {self.think_time}")
        return Source(
            num_requests=self.num_requests,
            seed=self.seed,
            max_tokens=self.max_tokens,
            domains=self.domains,
            languages=self.languages,
            prompts=self.prompts,
            trace=self.trace,
            scale=_factor(self.scale_lengths),
            max_input=self.max_input,
            rate=self.rate,
            speedup=self.speedup,
            tokenizer=self.tokenizer,
            chat=endpoint == "chat",
            phases=tuple(TrafficPhase.parse(text) for text in self.phase or ()),
            turns=self.turns,  # type: ignore[arg-type]  # checked above
            think_s=self.think_time,
            ls_share=self.ls_share,
        )


@dataclass(frozen=True)
class Played:
    """How it is sent."""

    endpoint: Annotated[str, typer.Option(help="generate, chat or completions.")] = "generate"
    concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: requests in flight [default: 4]; open: a cap.")
    ] = None
    label: Annotated[
        str | None,
        typer.Option(
            help="Tell the router each request's domain, language, cell (domain/language) or "
            "class, for the policy label_oracle."
        ),
    ] = None
    stop_at_eos: Annotated[
        bool, typer.Option("--stop-at-eos", help="Let answers end early [default: full length].")
    ] = False
    warmup: Annotated[int, typer.Option(help="Requests sent first and not counted.")] = 2

    def load(self, is_open: bool, served: bool = False) -> BenchLoad:
        """BenchError: an endpoint, label or concurrency that is none."""
        from toolkit.bench.errors import BenchError
        from toolkit.bench.runner import BenchLoad

        if self.endpoint not in ("generate", "chat", "completions"):
            raise BenchError(f"--endpoint is generate, chat or completions, not {self.endpoint!r}")
        if self.label not in (None, "domain", "language", "cell", "class"):
            raise BenchError(f"--label is domain, language, cell or class, not {self.label!r}")
        if self.concurrency is not None and self.concurrency < 1:
            raise BenchError("--concurrency must be at least 1")
        return BenchLoad(
            endpoint=self.endpoint,  # type: ignore[arg-type]  # checked above
            open_loop=is_open,
            concurrency=self.concurrency if is_open else self.concurrency or 4,
            ignore_eos=not self.stop_at_eos,
            label=self.label,  # type: ignore[arg-type]  # checked above
            served=served,
        )


@dataclass(frozen=True)
class Judged:
    """What is compared, and what counts as good."""

    compare: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare in paired rounds: A,B[,C]; each is "
            "[late:|concurrent:][PREFILL+]DECODE, as eldr, eldr@0.05 or late:shortest_queue. "
            "Ratios are A's to each other one's."
        ),
    ] = None
    rounds: Annotated[int, typer.Option(help="Paired rounds of a comparison.")] = 6
    slo_ttft_ms: Annotated[float | None, typer.Option(help="Goodput: TTFT limit.")] = None
    slo_tpot_ms: Annotated[float | None, typer.Option(help="Goodput: TPOT limit.")] = None

    def arms(self) -> tuple[Arm, ...]:
        """Empty without --compare."""
        from toolkit.bench.compare import Arm
        from toolkit.bench.errors import BenchError

        if self.compare is None:
            return ()
        arms = tuple(Arm.parse(part) for part in self.compare.split(","))
        if len(arms) < 2 or len({arm.text for arm in arms}) < len(arms):
            raise BenchError("--compare needs two or more different policies, as A,B")
        if self.rounds < 2:
            raise BenchError("--rounds must be at least 2: one round has no interval")
        return arms

    def slo(self) -> Slo:
        from toolkit.bench.metrics import Slo

        return Slo(self.slo_ttft_ms, self.slo_tpot_ms)


@dataclass(frozen=True)
class OutputOptions:
    """Where the result goes."""

    output: Annotated[
        Path | None, typer.Option(help="JSON file [default: ~/.cache/toolkit/bench/DATE.json].")
    ] = None
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            "--report",
            help="HTML page to write: of a comparison its verdicts, every round and all figures; "
            "of a sweep its curves and knees; of one run its latencies and decode workers.",
        ),
    ] = None


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
