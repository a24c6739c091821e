"""A worker of a model as large as DeepSeek-V3, as who profiles it sees it: its HTTP process.

`python -m tests.benchmarks.shared.wide_worker ROLE PORT RATE OTHER`: the worker's own hub of
experts (`patches.streams.expert_stream`) behind uvicorn, told what a scheduler would tell it at
RATE requests a second: one message a request, unpacked as the real one is, and the steps of eight
ranks. `GET /stream`: a token every 10 ms, for who measures gaps. `GET /workers`: this worker and
that at the URL OTHER, as a router says it.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from patches.experts.capture import ExpertsCaptured
from patches.steps.step_log import FIELDS
from patches.streams.expert_stream import ExpertHub
from toolkit.contract import VERSION
from toolkit.contract.events import Experts, Hello, Ping, encode
from toolkit.contract.frames import StepsHead
from toolkit.contract.paths import EVENTS, EXPERTS

LAYERS, EXPERTS_EACH, TOP_K = 58, 256, 8
PROMPT, ANSWER = 1000, 370
"""Tokens of a request."""
RANKS, STEPS_S = 8, 20.0
TOKEN_S = 0.01
KINDS = 3
"""Different requests."""


def messages(role: str) -> list[bytes]:
    """What the scheduler says of requests, as it comes out of a socket."""
    rng = np.random.default_rng(1)
    rows = PROMPT if role == "prefill" else ANSWER - 1
    made = []
    for _ in range(KINDS):
        weights = rng.random((LAYERS, EXPERTS_EACH), dtype=np.float32)
        noise = rng.random((rows, LAYERS, EXPERTS_EACH), dtype=np.float32)
        ids = np.argpartition(-(weights + noise), TOP_K, axis=2)[:, :, :TOP_K].astype(np.int16)
        told = ExpertsCaptured(
            rid="", phase=role, dp_rank=0, start=0 if role == "prefill" else PROMPT,
            shape=(rows, LAYERS, TOP_K), ids=ids.tobytes(), prompt_tokens=PROMPT,
            cached_tokens=0, whole=True, end=0.0,
        )  # fmt: skip
        made.append(pickle.dumps(told))
    return made


async def work(hub: ExpertHub, said: Sequence[bytes], rate: float) -> None:
    """Say what a scheduler says, for ever."""
    began, number = time.monotonic(), 0
    while True:
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        number += 1
        rid = f"request-{number}"
        if hub.share and hub.sampled(rid):
            told: ExpertsCaptured = pickle.loads(said[number % KINDS])
            rank = number % RANKS
            hub.publish_experts(replace(told, rid=rid, end=time.monotonic(), dp_rank=rank))


async def steps(hub: ExpertHub, role: str) -> None:
    """The steps of its ranks, every half second."""
    count = round(STEPS_S / 2)
    while True:
        await asyncio.sleep(0.5)
        now = time.monotonic()
        for rank in range(RANKS):
            rows = np.zeros((count, len(FIELDS) + LAYERS), dtype=np.float32)
            rows[:, FIELDS.index("end")] = -np.arange(count)[::-1] / STEPS_S
            rows[:, FIELDS.index("decode")] = role == "decode"
            rows[:, len(FIELDS) :] = 100.0
            hub.publish(StepsHead(rank, now, FIELDS, rows.shape), rows.tobytes())


def app(role: str, port: int, rate: float, other: str) -> Any:
    """Its routes."""
    from fastapi import FastAPI
    from fastapi.responses import Response, StreamingResponse

    hub, said = ExpertHub(lambda _: None), messages(role)
    mine = f"http://127.0.0.1:{port}"

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(each) for each in (work(hub, said, rate), steps(hub, role))]
        yield
        for task in tasks:
            task.cancel()

    made = FastAPI(lifespan=lifespan)

    async def events() -> AsyncIterator[bytes]:
        experts = Experts(EXPERTS_EACH, TOP_K, LAYERS, captured=True)
        hello = Hello(
            contract=VERSION,
            role=role,
            model="wide",
            fingerprint="wide",
            experts=experts,
            dp_size=RANKS,
            dp_attention=role == "decode",
            max_running_requests=64,
        )
        yield encode(hello)
        while True:
            await asyncio.sleep(1.0)
            yield encode(Ping())

    async def tokens() -> AsyncIterator[bytes]:
        began, number = time.monotonic(), 0
        while True:
            number += 1
            await asyncio.sleep(max(0.0, began + number * TOKEN_S - time.monotonic()))
            yield b"data: token\n\n"

    async def workers() -> Response:
        roles = {"prefill": "decode", "decode": "prefill"}
        rows = [{"url": mine, "role": role}, {"url": other, "role": roles[role]}]
        return Response(json.dumps({"workers": rows}), media_type="application/json")

    async def experts(share: float = 0.0) -> StreamingResponse:
        return StreamingResponse(hub.subscribe(share), media_type="application/octet-stream")

    made.add_api_route("/workers", workers)
    made.add_api_route(EVENTS, lambda: StreamingResponse(events()))
    made.add_api_route("/stream", lambda: StreamingResponse(tokens()))
    made.add_api_route(EXPERTS, experts)
    return made


def main() -> None:
    import uvicorn

    role, port, rate, other = sys.argv[1:]
    uvicorn.run(
        app(role, int(port), float(rate), other), port=int(port), log_level="error", loop="uvloop"
    )


if __name__ == "__main__":
    main()
