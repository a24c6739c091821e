"""Single-field mutations of valid requests against real SGLang workers.

A valid body of each endpoint (plain, streamed, with log probabilities, batches, grammars, tools)
gets one of its fields replaced, every field of SGLang's own request classes in turn
(`tests.benchmarks.mutation_parts.bodies`): wrong types, huge, negative and non-finite numbers,
empty and nested containers, long strings, ids outside the vocabulary, broken grammars. Nothing to
compare with: the counts are absolute, and all of them should be 0 but `mutations`.

Several are in flight at once. After each block the workers' pids are looked at; a block after which
one has changed is sent again, one body at a time, to find the one that kills. What took longer than
ten seconds is sent again alone too, and is a hang when it does so again.

keys: mutations (bodies sent), mutation_deaths (bodies that ended a worker), hangs (no whole answer
within 10 s), answers_500 (status 500, in a stream too); more: answers_other_5xx, statuses, skipped

    python -m tests.benchmarks.mutations                 # launch/cpu-demo.yaml, through the router
    python -m tests.benchmarks.mutations --worker decode-0   # straight at one of its workers
    python -m tests.benchmarks.mutations --patched       # one server with our patches, not in PD
    python -m tests.benchmarks.mutations --plain --out killers.jsonl   # without them

`--out FILE`: each death, hang and 5xx as a JSON line. `--count`, `--seed`, `--match`: which bodies.
`--minutes`: stop then. With `--plain` a field that killed twice is left alone (`skipped`).
`--quick`: 300 bodies.
"""

import asyncio
import contextlib
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from tests.benchmarks.mutation_parts.bodies import BASES, NATIVE, Mutation, mutations
from tests.benchmarks.mutation_parts.client import LIMIT_S, Outcome, post
from tests.benchmarks.mutation_parts.fields import fields
from tests.benchmarks.mutation_parts.targets import Deployment, Target, Worker, single
from tests.benchmarks.shared.common import RECIPE, Result, arguments

BLOCK = 24
IN_FLIGHT = 6
PROBE = Mutation(NATIVE, 0, "stream", False)
ALONE = (("bootstrap_host", "2.2.2.2"), ("bootstrap_room", 7))
"""SGLang's own warm-up's (`FAKE_BOOTSTRAP_HOST`): a worker then computes without its other half, so
that values get past what it checks first. Bodies with a grammar, and those that name a host, are
left out (`Mutation.halves`)."""
DYING_S = 12.0
"""A scheduler's end takes its server along; that can take so long."""


class Run:
    """One pass over the bodies."""

    def __init__(self, target: Target, http: aiohttp.ClientSession, out: Path | None) -> None:
        self.target = target
        self.http = http
        self.out = out
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.deaths_of: Counter[str] = Counter()

    async def block(self, bodies: list[Mutation]) -> None:
        """Send them at once; alone, one after the other, where something went wrong."""
        before = self.target.pids()
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def one(body: Mutation) -> Outcome:
            async with gate:
                return await post(self.http, self.target.url, body, self.target.headers)

        outcomes = await asyncio.gather(*map(one, bodies))
        if await self._died(before, outcomes):
            self.target.recover()
            for body in bodies:
                await self.alone(body)
            return
        for body, outcome in zip(bodies, outcomes, strict=True):
            if outcome.how == "answer" and outcome.status < 500:
                self.statuses[outcome.status] += 1
            else:
                await self.alone(body)

    async def alone(self, body: Mutation) -> None:
        """Send one body and take down what came of it."""
        before = self.target.pids()
        outcome = await post(self.http, self.target.url, body, self.target.headers)
        self.statuses[outcome.status] += 1
        if await self._died(before, [outcome]):
            words = self.target.last_words()
            self.target.recover()
            self._note("mutation_deaths", body, outcome, words)
            self.deaths_of[_kind(body)] += 1
        elif outcome.how != "answer":
            self._note("hangs", body, outcome)
        elif outcome.status == 500:
            self._note("answers_500", body, outcome)
        elif outcome.status > 500:
            self._note("answers_other_5xx", body, outcome)

    async def _died(self, before: dict[str, int | None], outcomes: list[Outcome]) -> bool:
        """Whether a worker has another pid than before. A server that no longer answers has died
        of it too: it is given time to end."""
        probe = await post(self.http, self.target.url, PROBE, self.target.headers)
        everything = [*outcomes, probe]
        well = all(o.how == "answer" and o.status < 502 for o in everything)
        deadline = time.monotonic() + (0 if well else DYING_S)
        while True:
            if self.target.pids() != before:
                return True
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(0.2)
        if well:
            return False
        again = await post(self.http, self.target.url, PROBE, self.target.headers)
        return again.how != "answer"

    def _note(self, what: str, body: Mutation, outcome: Outcome, words: str = "") -> None:
        self.counts[what] += 1
        line = {"what": what} | body.record()
        line |= {"status": outcome.status, "message": outcome.message, "died_of": words}
        line |= {"how": outcome.how, "seconds": round(outcome.seconds, 2)}
        text = json.dumps(line)
        print(text, flush=True)
        if self.out is not None:
            with self.out.open("a") as sink:
                sink.write(text + "\n")


def _kind(body: Mutation) -> str:
    return f"{body.endpoint} {body.field.rsplit('.', 1)[-1]}"


@contextlib.contextmanager
def _target(options: Any, folder: Path) -> Iterator[Target]:
    if options.plain or options.patched:
        module = "tests.benchmarks.plain_server" if options.plain else "patches.worker"
        with single(folder, module) as server:
            yield server
        return
    from toolkit.launch.resolve import resolve
    from toolkit.launch.running import running
    from toolkit.settings.load import load_deployment

    with running(resolve(load_deployment(RECIPE)), folder / "run") as up:
        headers = {"Authorization": f"Bearer {up.worker_key}"}
        yield Worker(up, options.worker, headers) if options.worker else Deployment(up, {})


async def _play(options: Any, target: Target, bodies: list[Mutation]) -> Run:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        run = Run(target, http, options.out)
        # The first answers of a server take seconds more: what is compiled and loaded late.
        for endpoint, bases in BASES.items():
            for base in range(len(bases)):
                await post(http, target.url, Mutation(endpoint, base, "user", "x"), target.headers)
        end = time.monotonic() + 60 * options.minutes
        size = 1 if options.plain else BLOCK
        left = list(bodies)
        while left and time.monotonic() < end:
            if options.plain:
                again = [body for body in left if run.deaths_of[_kind(body)] < 2]
                run.counts["skipped"] += len(left) - len(again)
                left = again
            block, left = left[:size], left[size:]
            run.counts["mutations"] += len(block)
            await (run.alone(block[0]) if len(block) == 1 else run.block(block))
    return run


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--plain", {"action": "store_true", "help": "a server without our patches"}),
        ("--patched", {"action": "store_true", "help": "one server with our patches"}),
        ("--worker", {"help": "a worker of the deployment, not its router"}),
        ("--count", {"type": int, "default": 2000, "help": "bodies (2000)"}),
        ("--seed", {"type": int, "default": 0}),
        ("--match", {"default": "", "help": "only fields whose name has this regular expression"}),
        ("--minutes", {"type": float, "default": 60.0}),
        ("--out", {"type": Path, "help": "deaths, hangs and 500s, as JSON lines"}),
    )
    result = Result()
    bodies = [
        b for b in mutations(fields(), seed=options.seed) if re.search(options.match, b.field)
    ]
    if options.worker:
        bodies = [replace(body, beside=ALONE) for body in bodies if body.halves]
    bodies = bodies[: 300 if options.quick else options.count]
    with (
        tempfile.TemporaryDirectory(prefix="mutations-") as folder,
        _target(options, Path(folder)) as target,
    ):
        run = asyncio.run(_play(options, target, bodies))
    for key in ("mutations", "mutation_deaths", "hangs", "answers_500", "answers_other_5xx"):
        result.keys[key] = run.counts[key]
    result.keys["skipped"] = run.counts["skipped"]
    result.keys["statuses"] = {str(status): count for status, count in run.statuses.items()}
    result.keys["limit_s"] = LIMIT_S
    result.emit(samples=run.counts["mutations"])


if __name__ == "__main__":
    main()
