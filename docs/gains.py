"""The table of what the toolkit gains, made from the records in `results/`.

`python -m docs.gains` writes it into README.md, between the two marks; the home page takes it while
the site is built. A figure is never typed by hand: each cell names the keys of a record.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from docs import figures, reference

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- gains -->", "<!-- end of gains -->"
IN_README = ("docs/pages/", "results/")
IN_SITE = ("", "results.md#")
CPU, SIMULATED = "2 CPU cores", "simulator"


class Gain(NamedTuple):
    """One row. `result` and `price` hold `{key}`s of the record's figures; `{key!}` is a ratio or a
    difference with its interval. `benchmark`: the record's name, `gpu/STEP` for a step of the GPU
    checks; `words`: a piece of the command that made the record; `again`: the command that makes it
    again, where that is another. A row with no benchmark says what nobody has shown."""

    what: str
    against: str
    result: str
    price: str
    where: str
    page: str
    benchmark: str = ""
    words: str = ""
    again: str = ""


GAINS = (
    Gain(
        "Expert locality (`eldr`)",
        "the best of five load balancers, live",
        "no difference seen by clients: TPOT {live_tpot_p50_ratio!} times, TTFT {ttft_ratio!},"
        " tokens/s {throughput_ratio!}",
        "its batches have {distinct_ratio_rr!} times round robin's experts; replayed on one idle"
        " worker they take {tpot_p50_ratio!} times the TPOT",
        CPU,
        "gains.md#expert-locality",
        "eldr",
        "tests.benchmarks.eldr --prompts",
        "tests.benchmarks.eldr --prompts FILE",
    ),
    Gain(
        "What a distinct expert costs a decode step",
        "the same batch of 64 with few experts",
        "a step takes {fixed_batch.time_ratio} times as long with {fixed_batch.distinct_ratio}"
        " times the experts",
        "8 layers; no choice by experts was made on a GPU",
        "one H100",
        "gpu.md#what-has-come-of-it",
        "gpu/experts",
    ),
    Gain(
        "Level decode ranks (`level`)",
        "the best of six load balancers, ranks whose slots are all taken",
        "output tokens/s {slots 8.against.level.unpooled.output_tokens_s!} times",
        "no gain over the best with the pool where KV is full before the slots:"
        " {kv 8.against.level.pooled.output_tokens_s!} times; none told apart on two real ranks",
        SIMULATED,
        "gains.md#level-decode-ranks",
        "score_simulated",
    ),
    Gain(
        "First token from prefill",
        "first token from decode",
        "TTFT {ttft_ratio!} times",
        "longest gap in an answer {gap_ratio!} times",
        CPU,
        "gains.md#first-token",
        "first_token",
    ),
    Gain(
        "Late dispatch",
        "both workers chosen at once",
        "the decode choice knows the prompt's experts and the ranks' load",
        "TTFT + {ttft_added_ms!} ms, where the first token comes from decode",
        CPU,
        "gains.md#late-dispatch",
        "late_binding",
    ),
    Gain(
        "Decode workers of long prompts, chosen early",
        "late dispatch, KV sent at once when the prompt is through",
        "KV still on its way at a prompt's end {exposed_ratio!} times",
        "TTFT {ttft_ratio!} times",
        CPU,
        "gains.md#long-prompts",
        "early_choice",
        "early_choice --record",
    ),
    Gain(
        "Late dispatch with the pool, 32 in flight",
        "both chosen at once by shortest queue",
        "TTFT {ratio.ttft_ms!} times",
        "TPOT {ratio.tpot_ms!} times",
        "one H200",
        "gpu.md#what-has-come-of-it",
        "gpu/late",
    ),
    Gain(
        "Preemption (`preempt: strict`)",
        "the best of latency-sensitive first without stops, shortest first and SGLang's priorities,"
        " each in four chunk sizes",
        "latency-sensitive TTFT {ls_ttft_ratio_best!} times, best-effort tokens/s"
        " {be_throughput_ratio_best!} times",
        "against order of arrival: TTFT {ls_ttft_ratio_fcfs!} times, best-effort tokens/s"
        " {be_throughput_ratio!} times",
        CPU,
        "gains.md#preemption",
        "preempt",
        "--share 0.3",
        "tests.benchmarks.preempt --rounds 10 --requests 70 --share 0.3 --parts closed,calm",
    ),
    Gain(
        "Preemption, ten prompts of 24,576 tokens",
        "no stop",
        "TTFT of a short latency-sensitive prompt {hurry_ratio!} times",
        "the long prompt's TTFT {ratio!} times",
        "one H100",
        "gpu.md#what-has-come-of-it",
        "gpu/preempt",
    ),
    Gain(
        "A router of several processes, the one that decides killed under 1,000 streams",
        "three times, each with another router",
        "{decider.lost} streams lost, {decider.wrong} changed; new requests are served again after"
        " {decider.recovery_ms} ms at most",
        "a request takes more CPU than in one process, and waits longer for its decisions",
        CPU,
        "scale.md#figures",
        "router_faults",
    ),
    Gain(
        "Moves of running requests",
        "no move",
        "{moves} moves under load: {lost} tokens lost, {different} answers changed",
        "a stream stands still for {load_stall_p50_ms} ms (p50), {load_stall_p99_ms} (p99)",
        CPU,
        "gains.md#moves",
        "migrate",
        "--part load",
        "tests.benchmarks.migrate --part load",
    ),
    Gain(
        "Direct moves",
        "no move",
        "{direct.512.outcomes.moved} of {direct.512.moves} took place with prompts of 512 tokens",
        "one of four with 8,192 tokens",
        "one H100",
        "gpu.md#what-has-come-of-it",
        "gpu/migrate",
    ),
    Gain(
        "ELDR's and `level`'s choices, stages, relocated experts, node locality, several GPUs",
        "",
        "**not shown on a GPU**",
        "",
        "",
        "limits.md",
    ),
)


def number(value: float) -> str:
    """Two digits behind the point, none from 10 on; two significant digits below 0.1."""
    if abs(value) >= 9.995:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 0.0995 else f"{value:.2g}"


def filled(text: str, found: dict[str, Any]) -> str:
    """`text` with each `{key}` replaced by the figure at these keys (dots between them)."""

    def put(mark: re.Match[str]) -> str:
        *path, key = mark[1].split(".")
        place: Any = found
        for part in path:
            place = place[part]
        shown = number(place[key])
        if not mark[2]:
            return shown
        return f"{shown} ({number(place[f'{key}_low'])} to {number(place[f'{key}_high'])})"

    return re.sub(r"\{([^}!]+)(!?)\}", put, text)


def table(links: tuple[str, str] = IN_SITE) -> str:
    """The table in Markdown. `links`: what comes before the name of a page, and of a record."""
    pages, results = links
    rows = [_row(gain, pages, results) for gain in GAINS]
    head = ("what", "compared with", "result", "price or limit", "measured on", "again")
    return "\n".join(reference.md_table(head, rows))


def _row(gain: Gain, pages: str, results: str) -> tuple[str, ...]:
    what = f"[{gain.what}]({pages}{gain.page})"
    if not gain.benchmark:
        return what, gain.against, gain.result, gain.price, gain.where, ""
    found = figures.newest(gain.benchmark, gain.words)
    if gain.benchmark.startswith("gpu/"):
        step = gain.benchmark.removeprefix("gpu/")
        record = f"{results}gpu/{step}.json" if results.endswith("/") else f"{pages}gpu.md"
        again = f"`tests.gpu --steps {step}`"
    else:
        record = f"{results}{gain.benchmark}" + (".jsonl" if results.endswith("/") else "")
        again = f"`{gain.again or f'tests.benchmarks.{gain.benchmark}'}`"
    measured = f"{gain.where}, [record]({record})"
    return (
        what,
        gain.against,
        filled(gain.result, found),
        filled(gain.price, found),
        measured,
        again,
    )


def in_readme(text: str, make: Callable[[tuple[str, str]], str] = table) -> str:
    """`text` of the README with a fresh table between the marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{make(IN_README)}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(in_readme(README.read_text()))
