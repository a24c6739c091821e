"""Signatures of real prefill workers against transformers' own router: whole prompts, exactly.

A prefill worker needs no decode worker to finish a prompt (it parks it), so each setting is one
worker; a request is aborted once its signature has come, as the router does with one nobody takes.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from tests.e2e import calls
from tests.e2e.reference import Reference
from tests.e2e.worker_process import TWO_RANKS, prefill_mode, worker
from toolkit.embedded import model_path
from toolkit.signatures.wire import unpack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("signatures")]

CONFIG = json.loads((model_path() / "config.json").read_text())
EXPERTS = CONFIG["num_experts"]
LAYERS = list(range(CONFIG["num_hidden_layers"]))
MASK = LAYERS[1::2]


@dataclass(frozen=True)
class Signature:
    counts: np.ndarray
    tokens: int
    cached: int
    complete: bool


class Prefill:
    """A client of one prefill worker: `signature` runs a prompt and drops it again."""

    def __init__(
        self, url: str, http: aiohttp.ClientSession, lines: Any, layers: list[int]
    ) -> None:
        self.url, self._http, self._lines, self._layers = url, http, lines, layers
        self._done: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._room = 0

    async def listen(self) -> None:
        async for line in self._lines:
            event = json.loads(line)
            # SGLang's own warm-up prompts are announced too.
            if event["type"] == "prefill_done" and event["rid"] in self._done:
                self._done.pop(event["rid"]).set_result(event)

    async def warm(self) -> bool:
        async with self._http.get(self.url + "/health") as response:
            return response.status == 200

    async def signature(self, prompt: list[int], rank: int | None = None) -> Signature:
        self._room += 1
        rid = f"signature-{self._room}"
        done = self._done[rid] = asyncio.get_running_loop().create_future()
        body = calls.greedy(prompt, 4, stream=False) | {"rid": rid, "bootstrap_room": self._room}
        if rank is not None:
            # SGLang lets the room say which of two ranks has it.
            body |= {"routed_dp_rank": rank, "bootstrap_room": 2 * self._room + rank}
        post = asyncio.create_task(self._post("/generate", body))
        await asyncio.wait({done, post}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert done.done(), await asyncio.wait_for(post, 0.1)
        event = done.result()
        await self._post("/abort_request", {"rid": rid})
        await post
        raw = event["signature"]
        counts, _ = unpack(raw)
        return Signature(
            counts.reshape(len(self._layers), EXPERTS),
            raw["tokens"],
            event["cached_tokens"],
            raw["complete"],
        )

    async def _post(self, path: str, body: dict[str, Any]) -> str:
        async with self._http.post(self.url + path, json=body) as response:
            return f"{path} {response.status} {await response.text()}"


@asynccontextmanager
async def connected(url: str, layers: list[int]) -> AsyncIterator[Prefill]:
    async with calls.session() as http, http.get(url + "/toolkit/events") as events:
        hello = json.loads(await events.content.readline())
        assert hello["signature"] == {"layers": layers, "experts": EXPERTS}
        client = Prefill(url, http, events.content, layers)
        task = asyncio.create_task(client.listen())
        await calls.until(client.warm, "the worker's own warm-up has ended")
        try:
            yield client
        finally:
            task.cancel()


@contextmanager
def prefill(
    folder: Path, name: str, *flags: str, layers: list[int] = LAYERS, **env: str
) -> Iterator[str]:
    mode = (*prefill_mode(), "--enable-return-routed-experts")
    env["TOOLKIT_SIGNATURE_LAYERS"] = ",".join(map(str, layers))
    with worker(*mode, *flags, log=folder / f"{name}.log", **env) as url:
        yield url


def check(found: Signature, wanted: np.ndarray, prompt: list[int]) -> None:
    assert found.complete
    assert found.tokens == len(prompt)
    if wanted.max() <= 255:
        assert (found.counts == wanted).all(), f"{(found.counts != wanted).sum()} counts differ"
    else:  # one byte each: half a step of 1/255 of the largest
        assert np.abs(found.counts - wanted).max() <= wanted.max() / 255 / 2 + 1e-9


async def fresh_hit_chunked_concurrent(
    client: Prefill, layers: list[int], reference: Reference
) -> None:
    """The ways in which a prompt can come to its KV."""
    head = calls.prompt("signature-head", 160)
    fresh = await client.signature(head)
    check(fresh, reference.counts(head, layers), head)
    assert fresh.cached == 0

    again = await client.signature(head)  # all of it but the last token (or page)
    check(again, reference.counts(head, layers), head)
    assert again.cached >= 144

    half = head + calls.prompt("signature-tail", 160)
    found = await client.signature(half)
    check(found, reference.counts(half, layers), half)
    assert 144 <= found.cached <= 160

    long = calls.prompt("signature-long", 1100)
    check(await client.signature(long), reference.counts(long, layers), long)

    prompts = [calls.prompt(f"signature-{n}", 30 + 70 * n) for n in range(6)]
    prompts += [head + calls.prompt(f"signature-shared-{n}", 40) for n in range(4)]
    for prompt, found in zip(
        prompts, await asyncio.gather(*map(client.signature, prompts)), strict=True
    ):
        check(found, reference.counts(prompt, layers), prompt)


# Page sizes above 1 need a Triton allocator, so they cannot run on the CPU: rows are per slot, and
# `tests/unit/patches/experts/test_signature_cache.py` scatters them.
SETTINGS: dict[str, tuple[tuple[str, ...], list[int], dict[str, str]]] = {
    "chunks": (("--chunked-prefill-size", "256", "--sleep-on-idle"), LAYERS, {}),
    "mask": (("--chunked-prefill-size", "512", "--sleep-on-idle"), MASK, {}),
    "tp2": (("--tp-size", "2", "--sleep-on-idle"), LAYERS, TWO_RANKS),
    "no-overlap": (("--disable-overlap-schedule", "--sleep-on-idle"), LAYERS, {}),
    "retried": (
        ("--chunked-prefill-size", "256", "--sleep-on-idle"),
        LAYERS,
        {"SGLANG_TEST_FORCE_OPTIMISTIC_PREFILL_RETRY_PROB": "0.6"},
    ),
}


# Chunks are cut in "retried" too, and "mask" has the plain loop.
RARELY = ("chunks", "no-overlap")


@pytest.mark.parametrize(
    "setting",
    [pytest.param(name, marks=pytest.mark.full) if name in RARELY else name for name in SETTINGS],
)
def test_signatures_are_transformers_counts(
    setting: str, tmp_path: Path, reference: Reference
) -> None:
    flags, layers, env = SETTINGS[setting]

    async def main(url: str) -> None:
        async with connected(url, layers) as client:
            await fresh_hit_chunked_concurrent(client, layers, reference)

    with prefill(tmp_path, setting, *flags, layers=layers, **env) as url:
        calls.run(main(url))


def test_each_dp_attention_rank_speaks_for_its_own(tmp_path: Path, reference: Reference) -> None:
    flags = ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention", "--enable-dp-lm-head")

    async def main(url: str) -> None:
        async with connected(url, LAYERS) as client:
            prompts = [calls.prompt(f"dp-{n}", 50 + 60 * n) for n in range(6)]
            ranks = [n % 2 for n in range(6)]
            found = await asyncio.gather(*map(client.signature, prompts, ranks))
            # Again, each on the rank that has it: its own radix cache and signature cache.
            found += await asyncio.gather(*map(client.signature, prompts, ranks))
            for prompt, each in zip(prompts * 2, found, strict=True):
                check(each, reference.counts(prompt, LAYERS), prompt)
            assert all(each.cached for each in found[6:])

    with prefill(tmp_path, "dp", *flags, **TWO_RANKS) as url:
        calls.run(main(url))
