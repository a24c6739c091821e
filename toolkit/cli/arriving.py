"""The options that `simulate` and `plan` share, by what they are about (`toolkit.cli.grouped`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from toolkit.placement import Placement
    from toolkit.settings.deployment import Deployment
    from toolkit.simulate.costs.base import CostModel
    from toolkit.simulate.experts import SimulatedExperts
    from toolkit.simulate.of_draft import DraftCosts
    from toolkit.simulate.request import Request


@dataclass(frozen=True)
class Simulated:
    """What is simulated."""

    deployment: Annotated[str, typer.Argument(help="Deployment file, or a recipe's name.")]
    cost: Annotated[
        str,
        typer.Option(
            help="What steps take: a folder of `toolkit profile`, a YAML file of coefficients, or "
            "embedded."
        ),
    ] = "embedded"


@dataclass(frozen=True)
class Arriving:
    """What arrives."""

    trace: Annotated[
        Path | None, typer.Option(help="Azure CSV, Mooncake JSONL or lengths CSV (.gz is fine).")
    ] = None
    traffic: Annotated[
        Path | None,
        typer.Option(help="YAML of made traffic: rate, kinds, clients, bursts, drift."),
    ] = None
    rate: Annotated[
        float | None,
        typer.Option(help="Requests a second: of lengths-only traces, or of conversations."),
    ] = None
    seconds: Annotated[float, typer.Option(help="Of conversations made with --rate.")] = 600.0
    limit: Annotated[int | None, typer.Option(help="First requests of a trace.")] = None
    speedup: Annotated[float, typer.Option(help="Play a trace so many times faster.")] = 1.0
    time_unit: Annotated[
        float, typer.Option(help="A trace's times times this (1000: seconds taken for ms).")
    ] = 1.0
    longest_gap: Annotated[
        float | None, typer.Option(help="Cut holes of a trace to so many seconds.")
    ] = None
    scale: Annotated[
        str, typer.Option(help="Factors of a trace's prompts and answers, as 0.1 or 0.1,0.5.")
    ] = "1"
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Closed loop: so many in flight, times are not looked at."),
    ] = None
    ls_share: Annotated[
        float | None,
        typer.Option(
            help="Share of requests (or conversations), 0 to 1, that are latency-sensitive; the "
            "others are best-effort [default: as trace or traffic say]."
        ),
    ] = None

    @property
    def source(self) -> str:
        """In a word, for titles."""
        path = self.trace or self.traffic
        return path.name if path is not None else "conversations"

    def requests(self) -> Callable[[int], Iterator[Request]]:
        """Fresh requests of a seed. SimulateError: options that do not go together; BenchError: a
        share that is none."""
        from toolkit.bench.classes import check_share
        from toolkit.simulate.workloads.classes import with_classes

        found, share = self._bare(), self.ls_share
        check_share(share)
        if share is None:
            return found
        return lambda seed: with_classes(found(seed), share, seed)

    def _bare(self) -> Callable[[int], Iterator[Request]]:
        """Without the classes of `ls_share`."""
        from toolkit.simulate.errors import SimulateError
        from toolkit.simulate.workloads.trace import TraceOptions
        from toolkit.simulate.workloads.traffic import azure_like, generate

        prompts, answers = _factors(self.scale)
        options = TraceOptions(
            self.rate,
            self.speedup,
            self.longest_gap,
            self.time_unit,
            prompts,
            answers,
            limit=self.limit,
        )
        if self.trace is not None and self.traffic is not None:
            raise SimulateError("give --trace or --traffic, not both")
        if self.trace is not None:
            return _of_trace(self.trace, options)
        if self.traffic is not None:
            from toolkit.simulate.documents import read
            from toolkit.simulate.workloads.traffic import TrafficModel

            made = read(self.traffic, TrafficModel)
        elif self.rate is None:
            raise SimulateError("say what arrives: --trace FILE, --traffic FILE, or --rate R")
        else:
            made = azure_like(self.rate, self.seconds)
        return lambda seed: generate(made, seed)


@dataclass(frozen=True)
class Whose:
    """Whose experts requests use, and where these lie."""

    profile: Annotated[
        str | None,
        typer.Option(
            "--experts", help="Profile whose experts requests use (embedded, or a folder)."
        ),
    ] = None
    placement: Annotated[
        str | None,
        typer.Option(
            help="Where experts lie on the ep GPUs of a server that decodes: linear, or a file of "
            "`toolkit profile place`. per_distinct is then of one GPU [default: on no GPU in "
            "particular]."
        ),
    ] = None

    def folder(self, deployment: Deployment) -> str | None:
        """The profile that is given, else the file's, if it names one."""
        from toolkit.launch.profile_needs import read_locality
        from toolkit.resources import profiles_dir

        if self.profile is not None:
            embedded = self.profile == "embedded"
            return str(profiles_dir() / "embedded") if embedded else self.profile
        profiled = read_locality(deployment)
        return None if profiled is None else profiled.folder

    def experts(self, deployment: Deployment) -> SimulatedExperts | None:
        """Those of that profile, placed on GPUs if it is said how. ProfileError: it is none, or
        damaged; SimulateError, ValueError: a placement that does not fit."""
        from toolkit.simulate.errors import SimulateError
        from toolkit.simulate.experts import SimulatedExperts

        folder = self.folder(deployment)
        known = None if folder is None else SimulatedExperts.of_profile(folder)
        if self.placement is None:
            return known
        if known is None:
            raise SimulateError("--placement says where experts lie: say whose with --experts")
        role = "worker" if deployment.mode == "plain" else "decode"
        gpus = getattr(deployment, role).ep
        if gpus < 2:
            raise SimulateError(f"--placement spreads experts over GPUs: {role}.ep is {gpus}")
        return known.placed(_placement(self.placement, known, gpus))


@dataclass(frozen=True)
class Sizes:
    """Of a rank that decodes, where the file does not say."""

    kv_tokens: Annotated[
        int | None,
        typer.Option(help="KV pool of a rank that decodes, where the file does not say."),
    ] = None
    slots: Annotated[
        int | None, typer.Option(help="Requests such a rank runs, where the file does not say.")
    ] = None


@dataclass(frozen=True)
class DraftOptions:
    """Of a deployment with speculative decoding."""

    accepted: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="Tokens that a step gives a request in the mean, with the file's draft [default: "
            "as a profile of such workers measured].",
        ),
    ] = None
    draft_share: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Of a step's time without a draft, what a pass of the draft takes [default: that "
            "of one of the model's layers].",
        ),
    ] = None

    def costs(self, steps: CostModel) -> DraftCosts:
        """With what the costs themselves say."""
        from toolkit.simulate.of_draft import DraftCosts

        return DraftCosts.of(steps, self.accepted, self.draft_share)


@dataclass(frozen=True)
class SloOptions:
    """What counts as good."""

    slo_ttft_ms: Annotated[float | None, typer.Option(help="Goodput: TTFT limit.")] = None
    slo_tpot_ms: Annotated[float | None, typer.Option(help="Goodput: TPOT limit.")] = None
    slo_ls_ttft_ms: Annotated[
        float | None, typer.Option(help="TTFT limit of latency-sensitive requests alone.")
    ] = None

    @property
    def limits(self) -> tuple[float, ...]:
        """In seconds, infinite where none is given; the order is that of
        `toolkit.simulate.recorder.LatencyLimits`."""
        given = (self.slo_ttft_ms, self.slo_tpot_ms, self.slo_ls_ttft_ms)
        return tuple(float("inf") if x is None else x / 1e3 for x in given)


def _placement(text: str, known: SimulatedExperts, gpus: int) -> Placement:
    from toolkit.placement import Topology, linear, load_placement
    from toolkit.simulate.errors import SimulateError

    if text == "linear":
        return linear(known.layers, known.experts, Topology(gpus))
    try:
        return load_placement(Path(text), known.experts, gpus, known.rows)
    except OSError as error:
        repair = "it is `linear` or a file of `toolkit profile place`"
        raise SimulateError(f"--placement {text}: {error.strerror}; {repair}") from error


def _of_trace(trace: Path, options: object) -> Callable[[int], Iterator[Request]]:
    from toolkit.simulate.workloads.trace import TraceOptions, of_trace

    assert isinstance(options, TraceOptions)
    said: set[str] = set()

    def remark(text: str) -> None:
        if text not in said:
            said.add(text)
            typer.secho(text, err=True, fg="yellow")

    return lambda seed: of_trace(trace, options, seed, remark)


def _factors(text: str) -> tuple[float, float]:
    from toolkit.simulate.errors import SimulateError

    try:
        both = [float(part) for part in text.split(",")]
        if len(both) > 2 or min(both) <= 0:
            raise ValueError
    except ValueError as error:
        raise SimulateError(f"--scale is one or two factors above 0, not {text!r}") from error
    return both[0], both[-1]
