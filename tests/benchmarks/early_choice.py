"""The decode worker of a long prompt, chosen while its last chunks run, against late dispatch.

One router and the same real workers on the CPU (1 prefill + 2 decode, ELDR, prefill without the
overlap scheduler). Prompts of the embedded model's own texts, each of one domain and language, of
16 chunks of 480 tokens; every pair has two of one domain and language, one for each way, in an
order that alternates. `early_choice: 0`: a decode worker is asked for early wherever that saves
anything (by default 3 % of the prompt's prefill time, more than it is here).

`--prompts FILE`: texts that neither the model nor the centroids were made from. `--turn N`: the
last N chunks of a prompt are of another domain and language, the worst that can come after a
choice.

keys: exposed_ms (from the end of a prompt's forward to the news that its KV is on the decode
worker, as the prefill worker says both; median), exposed_ms_late; exposed_ratio and ttft_ratio
(geometric means of the paired ratios early / late with their 95 % interval), second_ms and
second_ms_late (from the first token to the second, as a client sees them), second_added_ms (median
of the paired differences); left_chunks (median when it was chosen); changed_choice (the share of
prompts whose nearest centroid is another one by the experts of the whole prompt than by those that
decided), changed_choice_of_K for other numbers of decode workers.
"""

import asyncio
import gzip
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments, interval, median_difference
from toolkit.bench.client import Sample, payload, send
from toolkit.bench.hosted import hosted
from toolkit.bench.runner import new_session
from toolkit.bench.target import set_policy
from toolkit.bench.workload import Item
from toolkit.contract.events import Hello, KvTransfer, PrefillDone, decode
from toolkit.launch.running import Running

MEASURES = ("toolkit/router", "toolkit/decide", "toolkit/policies/early_choice.py", "patches/pd")

CHUNK, CHUNKS, TOKENS = 480, 16, 8
WORKERS = (2, 3, 4)
DEPLOYMENT: dict[str, Any] = {
    "name": "early-choice",
    "device": "cpu",
    "model": "embedded",
    "prefill": {
        "kv_tokens": 32768,
        "max_running": 8,
        "early_choice": 0,
        "args": {"chunked-prefill-size": CHUNK, "disable-overlap-schedule": True},
    },
    "decode": {"replicas": 2, "kv_tokens": 24576, "max_running": 4},
    "router": {"kind": "toolkit", "decode_policy": "eldr", "profile": "embedded"},
}


class Prompts:
    """Long ones of a domain and language, in another order of its texts each time."""

    def __init__(self, seed: int, file: Path | None, turn: int) -> None:
        """`file`: JSON lines of texts, None: the embedded model's own; `turn`: chunks at the end
        that are of another kind."""
        from transformers import AutoTokenizer

        from toolkit.embedded import load_prompts, model_path

        encode = AutoTokenizer.from_pretrained(model_path()).encode
        self._source, self._turn = random.Random(seed), turn
        self._texts: dict[tuple[str, str], list[list[int]]] = {}
        if file is None:
            texts = [(each.domain, each.language, each.text) for each in load_prompts()]
        else:
            lines = (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8")
            with lines:
                found = map(json.loads, lines)
                texts = [(each["domain"], each["language"], each["text"]) for each in found]
        for domain, language, text in texts:
            self._texts.setdefault((domain, language), []).append(encode(text))
        self.kinds = sorted(self._texts)

    def item(self, number: int) -> Item:
        """No other one begins so."""
        kind = self.kinds[number % len(self.kinds)]
        other = self._source.choice([k for k in self.kinds if not {*k} & {*kind}])
        ids = self._source.choices(range(300, 4000), k=4)
        self._fill(ids, kind, CHUNK * (CHUNKS - self._turn))
        self._fill(ids, other, CHUNK * CHUNKS)
        return Item(tuple(ids), TOKENS)

    def _fill(self, ids: list[int], kind: tuple[str, str], length: int) -> None:
        while len(ids) < length:
            ids += self._source.choice(self._texts[kind])
        del ids[length:]


class Heard:
    """What the prefill worker says of requests, each with the time at which it came."""

    def __init__(self, session: Any, url: str) -> None:
        self._session, self._url = session, url
        self.hello: Hello | None = None
        self.said: dict[str, dict[str, tuple[float, Any]]] = {}

    async def listen(self) -> None:
        async with self._session.get(self._url + "/toolkit/events") as stream:
            async for line in stream.content:
                event, now = decode(line), time.perf_counter()
                if isinstance(event, Hello):
                    self.hello = event
                elif isinstance(event, PrefillDone):
                    kind = "near" if event.left else "done"
                    self.said.setdefault(event.rid, {})[kind] = (now, event)
                elif isinstance(event, KvTransfer):
                    self.said.setdefault(event.rid, {})["there"] = (now, event)

    async def next(self, known: set[str]) -> dict[str, tuple[float, Any]]:
        """All of the one request that is new."""
        for _ in range(1000):
            new = [rid for rid in self.said if rid not in known]
            if new and {"done", "there"} <= self.said[new[0]].keys():
                known.add(new[0])
                return self.said[new[0]]
            await asyncio.sleep(0.01)
        raise RuntimeError("the prefill worker said nothing of a request")


@dataclass(frozen=True)
class Pairs:
    """What came of both ways, `rows[early]`, prompt by prompt; and for those chosen early what the
    prefill worker said of their experts, when it asked and at their end."""

    rows: dict[bool, list[dict[str, float]]]
    choices: list[tuple[Any, Any]]
    hello: Hello

    def figures(self, chunk: int) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        for name, early in (("", True), ("_late", False)):
            for of in ("exposed", "second", "ttft"):
                keys[f"{of}_ms{name}"] = statistics.median(row[of] for row in self.rows[early])
        both = list(zip(self.rows[True], self.rows[False], strict=True))
        for name, of in (("exposed_ratio", "exposed"), ("ttft_ratio", "ttft")):
            value, low, high = interval([ours[of] / late[of] for ours, late in both])
            keys |= {name: value, f"{name}_low": low, f"{name}_high": high}
        seconds = ([row["second"] for row in self.rows[early]] for early in (True, False))
        names = ("second_added_ms", "second_added_ms_low", "second_added_ms_high")
        keys |= dict(zip(names, median_difference(*seconds), strict=True))
        chosen = [row["left"] for row in self.rows[True] if row["left"]]
        keys["chosen_early"] = len(chosen) / len(self.rows[True])
        keys["left_chunks"] = statistics.median(chosen or [0.0]) / chunk
        return keys


async def paired(up: Running, rounds: int, item: Callable[[int], Item]) -> Pairs:
    """Pairs of `item(round)`, one request in flight."""
    prefill = next(str(each.url) for each in up.workers if each.role == "prefill")
    rows: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    choices: list[tuple[Any, Any]] = []
    async with new_session(300.0) as session, _session(up.worker_key) as worker:
        heard, known = Heard(worker, prefill), set[str]()
        listening = asyncio.create_task(heard.listen())
        for number in range(-2, rounds):  # two by which the worker finds its pace
            for early in (True, False) if number % 2 else (False, True):
                await set_policy(session, up.router_url, {"early_choice": early})
                body = payload("generate", "", item(number), True)
                sample = await send(session, up.router_url, "generate", body)
                assert sample.success, sample.error
                said = await heard.next(known)
                if number >= 0:
                    rows[early].append(_row(sample, said))
                    if early and "near" in said:
                        choices.append((said["near"][1].signature, said["done"][1].signature))
        listening.cancel()
    assert heard.hello is not None
    return Pairs(rows, choices, heard.hello)


def _session(key: str) -> Any:
    import aiohttp

    headers = {"authorization": f"Bearer {key}"}
    return aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None))


def _row(sample: Sample, said: dict[str, tuple[float, Any]]) -> dict[str, float]:
    done, there = said["done"][0], said["there"][0]
    return {
        "exposed": 1000 * max(there - done, 1e-5),
        "ttft": 1000 * sample.ttft,
        "second": 1000 * (sample.ttst - sample.ttft),
        "left": float(said["near"][1].left) if "near" in said else 0.0,
    }


def changed(hello: Hello, choices: list[tuple[Any, Any]]) -> dict[str, float]:
    """How often the nearest of K centroids is another one when the prompt is through."""
    import numpy as np

    from toolkit.resources import profiles_dir
    from toolkit.signatures.calibrated import calibrated
    from toolkit.signatures.clusters import fresh_centroids
    from toolkit.signatures.reader import SignatureReader, SignatureSample

    known = calibrated(str(profiles_dir() / "embedded"))
    reader = SignatureReader(known.profile, known.space)
    reader.greet("prefill", "prefill", hello)
    samples = [reader.read("prefill", each) for pair in choices for each in pair]
    assert all(isinstance(each, SignatureSample) for each in samples), samples
    vectors = [each.vector for each in samples if isinstance(each, SignatureSample)]
    pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
    found: dict[str, float] = {}
    for k in WORKERS:
        centroids = fresh_centroids(known.requests.fitted, k, seed=0)
        moved = sum(
            int(np.argmax(centroids @ near)) != int(np.argmax(centroids @ whole))
            for near, whole in pairs
        )
        found[f"changed_choice_of_{k}"] = moved / len(pairs)
    return {"changed_choice": found[f"changed_choice_of_{WORKERS[0]}"]} | found


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--prompts", {"type": Path, "help": "JSON lines of text, domain, language; or .gz"}),
        ("--turn", {"type": int, "default": 0, "help": "chunks at the end of another kind"}),
    )
    result = Result()
    with tempfile.TemporaryDirectory(prefix="early-choice-") as folder:
        file = Path(folder) / "deployment.yaml"
        file.write_text(json.dumps(DEPLOYMENT))  # JSON is YAML
        prompts = Prompts(45, options.prompts, options.turn)
        with hosted(file, Path(folder)) as up:
            pairs = asyncio.run(paired(up, 6 if options.quick else 40, prompts.item))
    keys = pairs.figures(CHUNK) | changed(pairs.hello, pairs.choices)
    samples = 2 * len(pairs.rows[True])
    result.keys |= keys
    result.emit(samples)


if __name__ == "__main__":
    main()
