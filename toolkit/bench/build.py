"""From the command line's options to a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.bench import arrivals, mix, traces
from toolkit.bench.errors import BenchError
from toolkit.bench.phases import Phase
from toolkit.bench.synthetic import TokenPool
from toolkit.bench.target import Target
from toolkit.bench.workload import Item, Workload

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPARE = 32  # tokens of the context left free, for a chat template
PROMPT_TOKENS = 32  # output tokens of the project's prompts when --max-tokens is not given


@dataclass(frozen=True, slots=True)
class Source:
    """What to send. `trace` None: the project's prompts.

    `rate` in requests/s, None: trace arrivals (or none at all for prompts). `scale` multiplies
    lengths, None: as much as it takes for the longest request to fit the model's context.
    `phases`, one after the other, take the place of `num_requests`, `domains` and `languages`.
    """

    num_requests: int = 64
    seed: int = 0
    max_tokens: int | None = None
    domains: str = "all"
    languages: str = "all"
    trace: Path | None = None
    scale: float | None = 1.0
    max_input: int | None = None
    rate: float | None = None
    speedup: float = 1.0
    tokenizer: Path | None = None
    as_text: bool = False
    phases: tuple[Phase, ...] = ()


def build(source: Source, target: Target, open_loop: bool) -> Workload:
    """The workload that `source` describes, cut to the target's context.

    Raises BenchError for options that do not go together or files that are not usable.
    """
    if source.num_requests < 1:
        raise BenchError("--num-requests must be at least 1")
    stamps: list[float] | None = None
    if source.trace is None:
        items = _prompt_items(source)
        name = "prompts " + ", then ".join(phase.mix for phase in _phases(source))
    elif source.phases:
        raise BenchError("--phase is for the project's prompts; a --trace has no domains")
    else:
        rows = fit(traces.load(source.trace, source.num_requests), source, target.context)
        items = _trace_items(rows, source, target)
        name = source.trace.name
        known = [row.stamp_s for row in rows if row.stamp_s is not None]
        stamps = arrivals.spread_grid(known, source.seed) if len(known) == len(rows) else None
    if not open_loop:
        return Workload(name, tuple(items))
    times = _times(source, stamps, items)
    return Workload(
        name,
        tuple(replace(item, arrival_s=when) for item, when in zip(items, times, strict=True)),
    )


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


def _phases(source: Source) -> tuple[Phase, ...]:
    """The phases, or all of an even run as one."""
    even = Phase(source.num_requests, source.domains, source.languages)
    return source.phases or (even,)


def _prompt_items(source: Source) -> list[Item]:
    prompts = project_prompts()
    deck = mix.Deck(prompts, source.seed)
    items = []
    for number, phase in enumerate(_phases(source)):
        domains = mix.parse_mix(phase.domains, (p.domain for p in prompts), "domain")
        languages = mix.parse_mix(phase.languages, (p.language for p in prompts), "language")
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
        prompt = tokenizer.decode(list(ids)) if source.as_text else ids
        items.append(Item(prompt, row.output_tokens, domain="trace"))
    return items


def project_prompts() -> Sequence[Any]:
    """The prompts that ship with the project."""
    from toolkit.embedded import load_prompts

    return list(load_prompts())


def load_tokenizer(folder: Path | None) -> Tokenizer:
    """The fast tokenizer of a model folder, without transformers (20 ms instead of 1 s)."""
    from tokenizers import Tokenizer

    if folder is None or not (folder / "tokenizer.json").is_file():
        raise BenchError(
            f"no tokenizer.json in {folder or 'what the server names'}: a trace needs the model's "
            "tokenizer to make prompts; pass --tokenizer FOLDER"
        )
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def token_pool(tokenizer: Tokenizer) -> TokenPool:
    """The project's prompts as one run of token ids."""
    texts = [prompt.text for prompt in project_prompts()]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    return TokenPool([token for entry in encoded for token in entry.ids])
