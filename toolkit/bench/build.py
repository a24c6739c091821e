"""From the command line's options to a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.bench import arrivals, mix, own, traces
from toolkit.bench.classes import drawn
from toolkit.bench.errors import BenchError
from toolkit.bench.phases import TrafficPhase
from toolkit.bench.source import Source
from toolkit.bench.synthetic import TokenPool
from toolkit.bench.target import PROMPT_TOKENS, SPARE, Target
from toolkit.bench.workload import Item, Workload

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def build(source: Source, target: Target, open_loop: bool) -> Workload:
    """The workload that `source` describes, cut to the target's context.

    Raises BenchError for options that do not go together or files that are not usable.
    """
    if source.requests < 1:
        raise BenchError("--num-requests must be at least 1")
    if source.turns != "one" and source.prompts is None:
        raise BenchError("--turns is for the conversations of a file: give --prompts FILE")
    if source.think_s and source.turns == "one":
        raise BenchError("--think-time lies between turns: give --turns recorded or served, too")
    stamps: list[float] | None = None
    remarks: tuple[str, ...] = ()
    if source.prompts is not None:
        items, remarks = own.items(source.prompts, source, target, load_tokenizer)
        name = source.prompts.name
    elif source.trace is None:
        items = _prompt_items(source)
        name = "prompts " + ", then ".join(phase.mix for phase in _phases(source))
    elif source.phases:
        raise BenchError("--phase is for the project's prompts; a --trace has no domains")
    else:
        rows = fit(traces.load(source.trace, source.requests), source, target.context)
        if source.ls_share is not None and any(row.request_class is not None for row in rows):
            raise BenchError(
                f"{source.trace} has classes, and --ls-share would draw others: leave it out"
            )
        items = _trace_items(rows, source, target)
        name = source.trace.name
        known = [row.stamp_s for row in rows if row.stamp_s is not None]
        stamps = arrivals.spread_grid(known, source.seed) if len(known) == len(rows) else None
    workload = Workload(name, tuple(items), remarks)
    if source.ls_share is not None:
        workload = drawn(workload, source.ls_share, source.seed)
    if not open_loop:
        return workload
    chains = workload.chains()
    times = _times(source, stamps, [chain[0] for chain in chains])
    timed = (
        replace(item, arrival_s=when)
        for chain, when in zip(chains, times, strict=True)
        for item in chain
    )
    return replace(workload, items=tuple(timed))


def fit(
    rows: Sequence[traces.TraceRow], source: Source, context: int | None
) -> list[traces.TraceRow]:
    """Scale and clip trace rows so that each fits the model's context (tokens)."""
    factor = source.scale
    if factor is None:
        if context is None:
            raise BenchError("--scale-lengths auto: the server does not say its context length")
        longest = max(row.input_tokens + row.output_tokens for row in rows)
        factor = min(1.0, (context - SPARE) / longest)
    fitted = []
    for row in rows:
        row = traces.scale(row, factor, source.max_input, source.max_tokens)
        if context is not None:
            made = min(row.output_tokens, max(1, (context - SPARE) // 2))
            given = max(1, min(row.input_tokens, context - SPARE - made))
            row = replace(row, input_tokens=given, output_tokens=made)
        fitted.append(row)
    return fitted


def _times(source: Source, stamps: list[float] | None, items: Sequence[Item]) -> list[float]:
    if stamps is not None and source.rate is None:
        return arrivals.from_trace(stamps, source.speedup)
    times: list[float] = []
    start = 0.0
    for number, phase in enumerate(_phases(source)):
        rate = phase.rate or source.rate
        if rate is None:
            raise BenchError(
                "an open loop needs --rate (or rate= in every --phase), or a --trace that has "
                "timestamps"
            )
        count = sum(item.phase == number for item in items)
        drawn = arrivals.poisson(rate * source.speedup, count + 1, source.seed + number)
        times += [start + when for when in drawn[:count]]
        start += drawn[count]
    return times


def _phases(source: Source) -> tuple[TrafficPhase, ...]:
    """The phases, or all of an even run as one."""
    even = TrafficPhase(source.requests, source.domains, source.languages)
    return source.phases or (even,)


def _prompt_items(source: Source) -> list[Item]:
    known = project_prompts()
    deck = mix.Deck(known, source.seed)
    items = []
    for number, phase in enumerate(_phases(source)):
        domains = mix.parse_mix(phase.domains, (p.domain for p in known), "domain")
        languages = mix.parse_mix(phase.languages, (p.language for p in known), "language")
        tokens = phase.max_tokens or source.max_tokens or PROMPT_TOKENS
        drawn = deck.draw(domains, languages, phase.requests, tokens)
        items += [replace(item, phase=number) for item in drawn]
    return items


def _trace_items(rows: Sequence[traces.TraceRow], source: Source, target: Target) -> list[Item]:
    tokenizer = load_tokenizer(source.tokenizer or target.model_path)
    pool = token_pool(tokenizer)
    items = []
    for index, row in enumerate(rows):
        ids = pool.prompt(row, index, source.seed)
        prompt = tokenizer.decode(list(ids)) if source.chat else ids
        kind = "" if row.request_class is None else row.request_class.value
        items.append(Item(prompt, row.output_tokens, domain="trace", kind=kind))
    return items


def project_prompts() -> Sequence[Any]:
    """The prompts that ship with the project."""
    from toolkit.embedded import load_prompts

    return list(load_prompts())


def load_tokenizer(
    folder: Path | None, why: str = "a trace needs the model's tokenizer to make prompts"
) -> Tokenizer:
    """The fast tokenizer of a model folder, without transformers (20 ms instead of 1 s)."""
    from tokenizers import Tokenizer

    if folder is None or not (folder / "tokenizer.json").is_file():
        raise BenchError(
            f"no tokenizer.json in {folder or 'what the server names'}: {why}; pass "
            "--tokenizer FOLDER"
        )
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def token_pool(tokenizer: Tokenizer) -> TokenPool:
    """The project's prompts as one run of token ids."""
    texts = [prompt.text for prompt in project_prompts()]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    return TokenPool([token for entry in encoded for token in entry.ids])
