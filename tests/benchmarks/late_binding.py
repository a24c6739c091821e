"""Late against concurrent dispatch: what choosing the decode worker after the prefill costs.

One router and the same real workers (1 prefill + 2 decode on the CPU, launch/cpu-demo.yaml). Each
prompt is sent twice with the same length and different tokens, once for each dispatch, the order
alternating (ABBA); prompts are unique, 40, 160 and 400 tokens long, 8 output tokens. `--lengths`
and `--chunk`: others, run in chunks of so many tokens, each of whose KV concurrent dispatch sends
while the next one runs; late dispatch sends all of it at the end. The first
token is decode's in both (`tests.benchmarks.first_token` has the other one). First with one request
in flight, then with four.

keys: ttft_added_ms (median of the paired differences late - concurrent, with its 95 % interval),
kv_transfer_ms (median over late rounds: from the first pages handed to the transfer engine to the
success that the prefill's scheduler saw); `added_LENGTH_ms`, the same difference of one length.
More: the medians by length, the same with four in flight (`c4_`), and `breakdown_late`,
`breakdown_concurrent`: the router's own medians of queue, prefill (POST to prefill done), decide
(to the decode POST) first (decode POST to its first byte: handshake, transfer, first step), and
transfer (the KV transfer alone, a part of first).

`--url` measures a router that is up instead of starting a deployment. `--eldr`: 1 prefill + 4
decode (launch/cpu-eldr.yaml), late by signatures against concurrent round robin, since nothing else
can be done before the prefill.
"""

import asyncio
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import RECIPE, Result, arguments, median_difference, percentile
from tests.benchmarks.shared.eldr_rounds import RECIPE as ELDR_RECIPE
from toolkit.bench.client import Sample, payload, send
from toolkit.bench.errors import BenchError
from toolkit.bench.hosted import hosted
from toolkit.bench.runner import new_session
from toolkit.bench.target import get_json, set_policy
from toolkit.bench.workload import Item
from toolkit.settings.yaml_lines import read_document

MEASURES = ("toolkit/router", "toolkit/decide", "patches/pd")

LENGTHS = (40, 160, 400)
TOKENS = 8
DISPATCH = ("late", "concurrent")
ELDR = {"late": "eldr", "concurrent": "round_robin"}
PARTS = ("queue", "prefill", "decide", "first", "transfer")


class Prompts:
    """Unique prompts of exact lengths."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)

    def item(self, length: int) -> Item:
        """The next prompt: no other one shares its first tokens."""
        return Item(tuple(self._source.choices(range(300, 4000), k=length)), TOKENS)


async def timing(session: Any, url: str) -> dict[str, float]:
    """The router's medians since the last switch of its dispatch, ms."""
    state = await get_json(session, url + "/workers")
    given = state.get("timing") or {}
    return {part: given[f"{part}_ms"]["p50"] for part in PARTS if f"{part}_ms" in given}


async def serve(
    session: Any, url: str, dispatch: str, policies: dict[str, str], items: list[Item]
) -> list[Sample]:
    """Switch the dispatch (and its decode policy, if it has one) and send the items at once."""
    setting = {"dispatch": dispatch, "first_token": "decode"}
    if dispatch in policies:
        setting["decode"] = policies[dispatch]
    await set_policy(session, url, setting)
    bodies = [payload("generate", "", item, True) for item in items]
    samples = await asyncio.gather(*(send(session, url, "generate", body) for body in bodies))
    lost = [sample.error for sample in samples if not sample.success]
    if lost:
        raise BenchError(f"{dispatch}: {len(lost)} request(s) were lost: {lost[0]}")
    return list(samples)


async def measure(
    url: str, rounds: int, flight: int, policies: dict[str, str], lengths: Sequence[int] = LENGTHS
) -> tuple[dict[str, Any], int]:
    """The paired rounds with `flight` requests at a time; keys and the number of samples."""
    prompts = Prompts(seed=flight)
    ttfts: dict[str, list[float]] = {name: [] for name in DISPATCH}
    by_length: dict[tuple[str, int], list[float]] = {}
    parts: dict[str, list[dict[str, float]]] = {name: [] for name in DISPATCH}
    async with new_session(120.0) as session:
        state = await get_json(session, url + "/workers")
        for dispatch in DISPATCH:  # connections and first-call costs
            items = [prompts.item(40) for _ in range(4)]
            await serve(session, url, dispatch, policies, items)
        for number in range(rounds):
            length = lengths[number % len(lengths)]
            for dispatch in DISPATCH if (number // len(lengths)) % 2 == 0 else DISPATCH[::-1]:
                items = [prompts.item(length) for _ in range(flight)]
                samples = await serve(session, url, dispatch, policies, items)
                mean = statistics.fmean(sample.ttft * 1000 for sample in samples)
                ttfts[dispatch].append(mean)
                by_length.setdefault((dispatch, length), []).append(mean)
                parts[dispatch].append(await timing(session, url))
        before = {"dispatch": state["dispatch"], "decode": state["policies"]["decode"]}
        before["first_token"] = state["first_token"]
        await set_policy(session, url, before)
    value, low, high = median_difference(ttfts["late"], ttfts["concurrent"])
    keys: dict[str, Any] = {
        "ttft_added_ms": value,
        "ttft_added_ms_low": low,
        "ttft_added_ms_high": high,
        # The news of a transfer may come after the answer: a round or two may lack it.
        "kv_transfer_ms": statistics.median(
            row["transfer"] for row in parts["late"] if "transfer" in row
        ),
    }
    for name in DISPATCH:
        keys[f"ttft_{name}_p50_ms"] = statistics.median(ttfts[name])
        keys[f"ttft_{name}_p90_ms"] = percentile(ttfts[name], 90)
        keys[f"breakdown_{name}"] = {
            part: statistics.median(row[part] for row in parts[name] if part in row)
            for part in PARTS
            if any(part in row for row in parts[name])
        }
        for length in lengths:
            if (name, length) in by_length:
                keys[f"ttft_{name}_{length}_ms"] = statistics.median(by_length[(name, length)])
    for length in lengths:
        late, concurrent = (by_length.get((name, length), []) for name in DISPATCH)
        if late:
            value, low, high = median_difference(late, concurrent)
            name = f"added_{length}_ms"
            keys |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return keys, 2 * rounds * flight


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--url", {"help": "a router that is up"}),
        ("--eldr", {"action": "store_true", "help": "late by signatures (launch/cpu-eldr.yaml)"}),
        ("--lengths", {"default": ",".join(map(str, LENGTHS)), "help": "tokens of the prompts"}),
        ("--chunk", {"type": int, "help": "tokens of a prefill pass [default: the recipe's]"}),
    )
    result = Result()
    if options.url:
        samples = run(options.url, result, options)
    else:
        with (
            tempfile.TemporaryDirectory(prefix="late-binding-") as folder,
            hosted(recipe(options, Path(folder)), Path(folder)) as deployment,
        ):
            samples = run(deployment.router_url, result, options)
    result.emit(samples)


def recipe(options: Any, folder: Path) -> Path:
    """The deployment file, with another chunk where one is asked for."""
    path = ELDR_RECIPE if options.eldr else RECIPE
    if options.chunk is None:
        return path
    document, _ = read_document(path)
    document["prefill"].setdefault("args", {})["chunked-prefill-size"] = options.chunk
    made = folder / "chunked.yaml"
    made.write_text(json.dumps(document))  # JSON is YAML
    return made


def run(url: str, result: Result, options: Any) -> int:
    """Both numbers of requests in flight; returns how many requests were timed."""
    quick, policies = options.quick, ELDR if options.eldr else {}
    lengths = [int(text) for text in options.lengths.split(",")]
    keys, one = asyncio.run(measure(url, 18 if quick else 120, 1, policies, lengths))
    result.keys |= keys
    keys, four = asyncio.run(measure(url, 6 if quick else 45, 4, policies, lengths))
    result.keys |= {f"c4_{name}": value for name, value in keys.items()}
    return one + four


if __name__ == "__main__":
    main()
