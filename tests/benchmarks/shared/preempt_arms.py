"""Deployments that differ in how a prefill worker treats best-effort prompts, and their traffic."""

import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.bench.client import Sample, payload, send
from toolkit.bench.errors import BenchError
from toolkit.bench.hosted import hosted
from toolkit.bench.workload import Item
from toolkit.contract.request_class import RequestClass
from toolkit.contract.variables import TRACE_VARIABLE

LS, BE = RequestClass.LATENCY_SENSITIVE, RequestClass.BEST_EFFORT
LONG, SHORT = (2000, 3900), (30, 200)
"""Prompt tokens of best-effort and latency-sensitive requests."""
TOKENS = 8
WHOLE = 4096
"""A chunk that holds every prompt."""
ALONE = ("priority", "shortest")
"""What SGLang alone has for latency-sensitive requests: their `priority`, or the shortest prompt
first, which makes room for them in the chunks of a long one. Each with a size of chunks:
`shortest@512`."""
KINDS = "preempt, preempt@CHUNK, experts@EVERY, classes@CHUNK, fcfs, completion, {}@CHUNK".format(
    "@CHUNK, ".join(ALONE)
)
NO_STOP = 1024
"""Layers of a slice, more than a model has: so nothing is stopped between layers."""


@dataclass(frozen=True)
class Arm:
    """`preempt`, `preempt@CHUNK`, `experts@EVERY` (looked at after so many experts, too),
    `classes@CHUNK` (latency-sensitive requests first, between chunks and nowhere else), `fcfs`,
    `completion` (one request at a time, to its end), or one of ALONE with its chunk."""

    name: str

    @property
    def kind(self) -> str:
        return self.name.partition("@")[0]

    @property
    def number(self) -> int:
        return int(self.name.partition("@")[2] or 0)

    def role(self) -> dict[str, Any]:
        """Of the worker that prefills, in a deployment file. ValueError: there is no such arm."""
        args: dict[str, Any] = {"chunked-prefill-size": WHOLE}
        role: dict[str, Any] = {"kv_tokens": 65536, "max_running": 64, "args": args}
        if self.kind == "preempt":
            args["chunked-prefill-size"] = self.number or WHOLE
            role["preempt"] = {"policy": "strict"}
        elif self.kind == "classes" and self.number:
            args["chunked-prefill-size"] = self.number
            role["preempt"] = {"policy": "strict", "slice": NO_STOP}
        elif self.kind == "experts" and self.number:
            role["preempt"] = {"policy": "strict", "experts": self.number}
        elif self.kind == "completion":
            role["max_running"] = 1
        elif self.kind in ALONE and self.number:
            args["chunked-prefill-size"] = self.number
            if self.kind == "priority":
                args["enable-priority-scheduling"] = True
            else:
                args["schedule-policy"] = "shortest-prefill-first"
        elif self.name != "fcfs":
            raise ValueError(f"{self.name!r} is none of {KINDS}")
        return role

    def recipe(self, mode: str, trace: Path) -> dict[str, Any]:
        """The deployment file; `trace`: the worker that prefills writes it there."""
        role = {**self.role(), "env": {TRACE_VARIABLE: str(trace)}}
        other = {"kv_tokens": 65536, "max_running": 64}
        router: dict[str, Any] = {"kind": "toolkit", "parked_per_prefill": 256}
        if self.kind in ("preempt", "experts", "classes"):
            router["classes"] = {}
        if mode == "plain":
            del router["parked_per_prefill"]
        roles = {"worker": role} if mode == "plain" else {"prefill": role, "decode": other}
        return {
            "name": self.name.replace("@", "-"),
            "device": "cpu",
            "model": "embedded",
            "mode": mode,
            "router": router,
            **roles,
        }


@dataclass(frozen=True)
class Up:
    """An arm that runs: its router, and where its worker's trace is."""

    arm: Arm
    url: str
    trace: Path

    def batches(self) -> list[dict[str, Any]]:
        """What the trace has so far, in order of its lines."""
        found = []
        for file in sorted(self.trace.parent.glob(f"{self.trace.name}.*")):
            found += [json.loads(line) for line in file.read_text().splitlines()]
        return found


@contextmanager
def side_by_side(arms: Sequence[Arm], mode: str, folder: Path) -> Iterator[list[Up]]:
    """Start them all; those that nobody asks sleep. BenchError: one did not start, or died."""
    with ExitStack() as stack:
        found = []
        for arm in arms:
            own = folder / arm.name.replace("@", "-")
            own.mkdir(parents=True)
            trace, file = own / "batches", own / "deployment.yaml"
            file.write_text(json.dumps(arm.recipe(mode, trace)))
            running = stack.enter_context(hosted(file, own))
            found.append(Up(arm, running.router_url, trace))
        yield found


def requests(seed: str, count: int, share: float) -> list[Item]:
    """`count` requests, each latency-sensitive with probability `share`. No two long prompts of one
    call are equally long, so that a trace tells them apart; none begins like another one."""
    source = random.Random(f"preempt-{seed}")
    long = source.sample(range(*LONG), count)
    kinds = [LS if source.random() < share else BE for _ in range(count)]
    lengths = [
        source.randint(*SHORT) if kind is LS else length
        for kind, length in zip(kinds, long, strict=True)
    ]
    return [
        Item(tuple(source.choices(range(300, 4000), k=length)), TOKENS, kind=kind.value)
        for kind, length in zip(kinds, lengths, strict=True)
    ]


def body(up: Up, item: Item) -> dict[str, Any]:
    """What is sent: SGLang's own priorities go by a number in it."""
    said = payload("generate", "", item, True)
    if up.arm.kind == "priority":
        said["priority"] = int(item.kind == LS)
    return said


async def played(
    session: Any, up: Up, items: Sequence[Item], in_flight: int = 0, at: Sequence[float] = ()
) -> tuple[list[Sample], float]:
    """The answers, and the seconds from the first request to the last answer. Closed loop with so
    many `in_flight`, or each `at` its time. BenchError: a request was lost."""
    samples: list[Sample | None] = [None] * len(items)
    left = iter(range(len(items)))
    began = time.perf_counter()

    async def one(number: int) -> None:
        item = items[number]
        samples[number] = await send(
            session, up.url, "generate", body(up, item), request_class=item.request_class
        )

    async def caller() -> None:
        for number in left:
            await one(number)

    async def timed(number: int) -> None:
        await asyncio.sleep(max(0.0, began + at[number] - time.perf_counter()))
        await one(number)

    if in_flight:
        await asyncio.gather(*(caller() for _ in range(in_flight)))
    else:
        await asyncio.gather(*map(timed, range(len(items))))
    found = [sample for sample in samples if sample is not None]
    lost = [sample.error for sample in found if not sample.success]
    if lost:
        raise BenchError(f"{up.arm.name}: {len(lost)} of {len(items)} requests lost: {lost[0]}")
    return found, time.perf_counter() - began
