"""What is tried on one architecture with real workers on the CPU, and what came of it.

A plain SGLang server of the same weights says what the answers must be, and transformers what the
model's own router picks. Every method of `Trial` raises AssertionError where something differs.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from tests.architectures.configs import Architecture
from tests.architectures.reference import Reference
from tests.e2e import calls
from tests.e2e.moving import migrate
from tests.e2e.worker_process import worker
from tests.e2e.workers import events
from toolkit.launch.running import Running
from toolkit.profile.measure import new_session
from toolkit.profile.tap import Tap
from toolkit.signatures.wire import unpack

TOKENS = 12
LONG_TOKENS = 60
LENGTHS = (5, 33, 70, 150, 300, 610)
"""Of prompts: one longer than a chunk of 512 tokens, and most longer than a sliding window."""
PARKED_S = 0.5


def prompts(architecture: Architecture) -> list[list[int]]:
    """Six prompts, each of a length of its own, by which its events are told apart."""
    return [calls.prompt(f"{architecture.name}-{length}", length) for length in LENGTHS]


def plain_answers(architecture: Architecture, model: Path, folder: Path) -> list[list[int]]:
    """What a plain server of SGLang says to each prompt, one at a time, without a prefix cache."""
    name = ("--served-model-name", architecture.name, "--model-path", str(model))
    own = [text for key, value in architecture.cpu_args.items() for text in (f"--{key}", value)]
    flags = (*own, "--sleep-on-idle", "--disable-radix-cache", "--chunked-prefill-size", "512")
    bodies = [calls.greedy(ids, TOKENS, stream=False) for ids in prompts(architecture)]
    with worker(*name, *flags, log=folder / "plain.log") as url:
        answers = calls.run(calls.all_of(url, bodies, concurrency=1))
    _no_errors(answers)
    said = [answer.ids for answer in answers]
    assert len({tuple(ids) for ids in said}) == len(said), "equal answers prove nothing"
    return said


def _no_errors(answers: list[calls.Answer]) -> None:
    errors = [answer.error for answer in answers if answer.error]
    assert not errors, f"{len(errors)} of {len(answers)} went wrong: {errors[0]}"


class Refused(Exception):
    """The toolkit does not do it with this model, and says why."""


@dataclass(frozen=True)
class Finished:
    """One request: its answer, its signature's counts [layers, experts] and what its workers
    captured, [tokens, layers with experts, k], ascending in k."""

    ids: list[int]
    cached: int
    complete: bool
    counts: np.ndarray
    prefill: np.ndarray
    decode: np.ndarray
    whole: bool


class Client:
    """Requests through the router of a deployment, and what its workers tell of them."""

    def __init__(self, up: Running, architecture: Architecture, http: Any, tap: Tap) -> None:
        self.up, self.http = up, http
        self._of, self._tap = architecture, tap
        self._done: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._number = 0

    async def listen(self, lines: AsyncIterator[dict[str, Any]]) -> None:
        async for event in lines:
            if event["type"] == "prefill_done":
                self._done.put_nowait(event)

    async def ask(self, ids: list[int], tokens: int = TOKENS) -> Finished:
        """Run one request while no other runs."""
        self._number += 1
        rid = f"{self._of.name}-{self._number}"
        body = {**calls.greedy(ids, tokens, stream=False), "rid": rid}
        asked = {"x-toolkit-capture": "1"}
        url = self.up.router_url + "/generate"
        async with self.http.post(url, json=body, headers=asked) as response:
            assert response.status == 200, await response.text()
            answer = await response.json()
        rows = await self._tap.request(rid, ("prefill", "decode"), 30)
        event = await asyncio.wait_for(self._done_of(len(ids)), 30)
        raw = event["signature"]
        counts, _ = unpack(raw)
        layers = list(self._of.moe_layers)
        return Finished(
            ids=answer["output_ids"],
            cached=event["cached_tokens"],
            complete=raw["complete"],
            counts=counts.reshape(len(layers), self._of.experts),
            prefill=np.sort(rows["prefill"].ids[:, layers], axis=2),
            decode=np.sort(rows["decode"].ids[:, layers], axis=2),
            whole=rows["prefill"].whole and rows["decode"].whole,
        )

    async def _done_of(self, length: int) -> dict[str, Any]:
        while True:
            event = await self._done.get()
            if event["prompt_tokens"] == length:
                return event


@asynccontextmanager
async def connected(up: Running, architecture: Architecture) -> AsyncIterator[Client]:
    """A client that hears of everything from now on."""
    urls = [worker.url for worker in up.workers]
    prefill = next(worker.url for worker in up.workers if worker.role == "prefill")
    async with (
        calls.session() as http,
        new_session() as own,
        Tap(own, urls) as tap,
        events(prefill) as lines,
    ):
        client = Client(up, architecture, http, tap)
        task = asyncio.create_task(client.listen(lines))
        try:
            yield client
        finally:
            task.cancel()


class Trial:
    """Checks on a deployment that is up; `plain` are a plain server's answers to `prompts`."""

    def __init__(
        self, up: Running, architecture: Architecture, plain: list[list[int]], reference: Reference
    ) -> None:
        self._up, self._of = up, architecture
        self._plain, self._reference = plain, reference

    async def equal(self) -> None:
        """Answers through PD are the plain server's, each request alone and all at once."""
        bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in prompts(self._of)]
        for at_once in (1, len(bodies)):
            answers = await calls.all_of(self._up.router_url, bodies, at_once)
            _no_errors(answers)
            assert [answer.ids for answer in answers] == self._plain

    async def signatures(self) -> None:
        """Of fresh prompts: the signature and what workers captured are what the model picks."""
        async with connected(self._up, self._of) as client:
            for length in LENGTHS:
                fresh = calls.prompt(f"{self._of.name}-fresh-{length}", length)
                self._right(fresh, await client.ask(fresh))

    async def prefix_cache(self) -> None:
        """The same of prompts that are cached in part, or but for their last token."""
        head = calls.prompt(f"{self._of.name}-head", 90)
        longer = [head + calls.prompt(f"{self._of.name}-tail-{n}", 20 + n) for n in range(2)]
        async with connected(self._up, self._of) as client:
            for ids, cached in ((head, 0), (longer[0], 80), (longer[1], 80), (longer[0], 100)):
                found = await client.ask(ids)
                assert found.cached >= cached, f"{found.cached} cached, not {cached}"
                self._right(ids, found)

    def _right(self, ids: list[int], found: Finished) -> None:
        # The last token of an answer is never run.
        picked = self._reference.experts([*ids, *found.ids[:-1]])
        assert found.whole and found.complete
        assert (found.prefill == picked[: len(ids)]).all(), "prefill captured others"
        assert (found.decode == picked[len(ids) :]).all(), "decode captured others"
        counts = self._reference.counts(ids)
        assert (found.counts == counts).all(), "the signature has other counts"

    async def late_binding(self) -> None:
        """Two prompts are parked; the second one is fetched first, half a second later."""
        chosen = (1, 3)
        asked = [prompts(self._of)[number] for number in chosen]
        await self.parked(asked, [self._plain[number] for number in chosen])

    async def parked(self, asked: list[list[int]], expected: list[list[int]]) -> None:
        """Prefill each of these prompts, then have them decoded, the last one first."""
        prefill, decode = self._both_calls()
        port = next(w.bootstrap_port for w in self._up.plan.workers if w.role == "prefill")
        bodies = []
        for ids in asked:
            body = calls.greedy(ids, TOKENS, stream=False)
            room = random.getrandbits(62)
            at = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}
            bodies.append(body | at | {"rid": f"parked-{room}"})
        async with calls.session() as http, events(prefill) as lines:
            posts = [asyncio.create_task(calls.generate(http, prefill, body)) for body in bodies]
            waiting = {body["rid"] for body in bodies}
            async for event in lines:
                if event["type"] == "prefill_done":
                    waiting.discard(event["rid"])
                if not waiting:
                    break
            await asyncio.sleep(PARKED_S)
            for body, ids in reversed(list(zip(bodies, expected, strict=True))):
                answer = await calls.generate(http, decode, body)
                assert (answer.error, answer.ids) == ("", ids)
            await asyncio.gather(*posts)

    def _both_calls(self) -> tuple[str, str]:
        found = {worker.role: worker.url for worker in reversed(self._up.workers)}
        return found["prefill"], found["decode"]

    async def moved(self) -> dict[str, int]:
        """Streams that move from one decode worker to the other say what they say undisturbed; how
        many went straight there, how many by a replay.

        Refused: none can, for the reason that the router gives.
        """
        kinds = {"direct": 0, "replay": 0}
        reasons = Counter[str]()
        ids = prompts(self._of)[2]
        url = self._up.router_url
        async with calls.session() as http:
            [calm] = await calls.all_of(url, [calls.greedy(ids, LONG_TOKENS, stream=True)], 1)
            assert calm.error == ""
            for how in ("auto", "replay"):
                async with http.post(
                    self._up.admin_url + "/admin/policy", json={"moves": how}
                ) as answer:
                    assert answer.status == 200, await answer.text()
                answer_ids, told = await self._moving(http, ids, f"{self._of.name}-{how}")
                assert answer_ids == calm.ids, f"a moved stream ({how}) said something else"
                for move in told:
                    if move["outcome"] == "moved":
                        kinds[move["kind"]] += 1
                    elif "reason" in move:
                        reasons[move["reason"]] += 1
            await http.post(self._up.admin_url + "/admin/policy", json={"moves": "auto"})
        stays = [reason for reason in reasons if "does not move" in reason]
        if stays and not sum(kinds.values()):
            raise Refused(stays[0])
        assert sum(kinds.values()), f"nothing moved: {dict(reasons)}"
        return kinds

    async def _moving(
        self, http: aiohttp.ClientSession, ids: list[int], rid: str
    ) -> tuple[list[int], list[dict[str, Any]]]:
        body = {**calls.greedy(ids, LONG_TOKENS, stream=True), "rid": rid}
        seen: list[int] = [0]
        count = lambda tokens: seen.__setitem__(0, tokens)  # noqa: E731
        task = asyncio.create_task(calls.generate(http, self._up.router_url, body, count))
        told: list[dict[str, Any]] = []
        while not task.done():
            if seen[0] >= 4:
                told += await migrate(http, self._up, rid=rid)
            await asyncio.sleep(0.02)
        answer = await task
        assert answer.error == "", answer.error
        return answer.ids, told
