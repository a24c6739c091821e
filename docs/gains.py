"""The table of what the toolkit gains, made from the records in `results/`.

`python -m docs.gains` writes it into README.md, between the two marks; the home page takes it while
the site is built. A figure is never typed by hand: each cell names the keys of a record.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from docs import reference

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- gains -->", "<!-- end of gains -->"
IN_README = ("docs/pages/", "results/")
IN_SITE = ("", "results.md#")
CPU, SIMULATED = "2 CPU cores", "simulator"


class Gain(NamedTuple):
    """One row. `result` and `price` hold `{key}`s of the record's figures; `{key!}` is a ratio or a
    difference with its interval. `command` are words of the command that made the record."""

    what: str
    against: str
    result: str
    price: str
    where: str
    benchmark: str
    command: tuple[str, ...]
    page: str


GAINS = (
    Gain(
        "Expert locality (`eldr`)",
        "round robin; for time the best of five load balancers",
        "distinct experts {distinct_ratio_rr!} times; replayed TPOT {tpot_p50_ratio!} times",
        "none seen by clients: live TTFT {ttft_ratio!} times, tokens/s {throughput_ratio!} times",
        CPU,
        "eldr",
        ("tests.benchmarks.eldr --prompts",),
        "gains.md#expert-locality",
    ),
    Gain(
        "Level decode ranks (`level`)",
        "best of six load balancers, ranks whose slots are all taken",
        "output tokens/s {slots 8.against.level.unpooled.output_tokens_s!} times",
        "no gain over the best with the pool where KV is full before the slots:"
        " {kv 8.against.level.pooled.output_tokens_s!} times; none told apart on two real ranks",
        SIMULATED,
        "score_simulated",
        (),
        "gains.md#level-decode-ranks",
    ),
    Gain(
        "First token from prefill",
        "first token from decode",
        "TTFT {ttft_ratio!} times",
        "longest gap in an answer {gap_ratio!} times",
        CPU,
        "first_token",
        (),
        "gains.md#first-token",
    ),
    Gain(
        "Late dispatch",
        "both workers chosen at once",
        "the decode choice knows the prompt's experts and the ranks' load",
        "TTFT + {ttft_added_ms!} ms, where the first token comes from decode",
        CPU,
        "late_binding",
        (),
        "gains.md#late-dispatch",
    ),
    Gain(
        "Preemption (`preempt: strict`)",
        "order of arrival",
        "latency-sensitive TTFT {ls_ttft_ratio_fcfs!} times",
        "best-effort throughput {be_throughput_ratio!} times",
        CPU,
        "preempt",
        ("--parts closed,calm",),
        "gains.md#preemption",
    ),
    Gain(
        "Moves of running requests",
        "no move",
        "{moves} moves under load: {lost} tokens lost, {different} answers changed",
        "a stream stands still for {load_stall_p50_ms} ms (p50), {load_stall_p99_ms} (p99)",
        CPU,
        "migrate",
        ("--part load",),
        "gains.md#moves",
    ),
)


def newest(benchmark: str, command: tuple[str, ...] = ()) -> dict[str, Any]:
    """The figures of the last record of `benchmark` whose command has all these words. KeyError:
    there is none."""
    found = [
        record["figures"]
        for record in reference.records()
        if record["benchmark"] == benchmark
        and "figures" in record
        and all(words in record["command"] for words in command)
    ]
    if not found:
        raise KeyError(f"results/ has no record of {benchmark} with {command}")
    figures: dict[str, Any] = found[-1]
    return figures


def number(value: float) -> str:
    """Two digits behind the point, none from 10 on; two significant digits below 0.1."""
    if abs(value) >= 9.995:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 0.0995 else f"{value:.2g}"


def filled(text: str, figures: dict[str, Any]) -> str:
    """`text` with each `{key}` replaced by the figure at these keys (dots between them)."""

    def put(mark: re.Match[str]) -> str:
        *path, key = mark[1].split(".")
        place: Any = figures
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
    rows = []
    for gain in GAINS:
        figures = newest(gain.benchmark, gain.command)
        record = f"{results}{gain.benchmark}"
        if results.endswith("/"):
            record += ".jsonl"
        rows.append(
            (
                f"[{gain.what}]({pages}{gain.page})",
                gain.against,
                filled(gain.result, figures),
                filled(gain.price, figures),
                f"{gain.where}, [record]({record})",
            )
        )
    head = ("what", "compared with", "result", "price or limit", "measured on")
    return "\n".join(reference.md_table(head, rows))


def in_readme(text: str, make: Callable[[tuple[str, str]], str] = table) -> str:
    """`text` of the README with a fresh table between the marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{make(IN_README)}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(in_readme(README.read_text()))
