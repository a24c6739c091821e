"""`abuse`, fuzzed bodies: the router between a raw client and stand-ins that serve anything."""

import gzip
import random
import zlib
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.abuse_parts.http import exchange, head
from tests.benchmarks.abuse_parts.json import Bodies
from tests.benchmarks.abuse_parts.watch import Memory, Tally, settled, side_by_side
from tests.standin.cluster import Cluster

LANES = 8
LIMITS = {"max_inflight": 64, "max_queue": 192, "request_timeout_s": 30}
TYPES = (
    "application/json", "application/json; charset=utf-16", "text/plain", "", "multipart/form-data",
    "application/x-www-form-urlencoded", "application/json;;;=", "\xff", "application/json, text/x",
)  # fmt: skip


async def bodies(count: int, seed: int) -> dict[str, Any]:
    """Send `count` bodies after a tenth as many of another seed; what came of them."""
    tally = Tally()
    async with Cluster(worker_args=["--patient"], config=LIMITS) as cluster:
        assert cluster.router is not None

        async def one(pieces: list[bytes]) -> None:
            outcome = await exchange(cluster.port, pieces)
            tally.count(b"".join(pieces), outcome)

        await side_by_side(requests(max(100, count // 10), seed + 1), one, LANES)
        warm, tally = tally, Tally()
        with Memory(cluster.router.pid) as memory:
            await side_by_side(requests(count, seed), one, LANES)
            await settled(cluster, tally)
            growth = memory.growth
    return {
        "bodies": tally.sent,
        "hangs": tally.hangs + warm.hangs,
        "crashes": tally.crashes,
        "answers_500": tally.answers_500 + warm.answers_500,
        "garbled": tally.garbled,
        "stuck": tally.stuck,
        "growth_mib": growth,
        "peak_mib": memory.peak - memory.first,
        "slowest_s": tally.slowest_s,
        "statuses": dict(sorted(tally.statuses.items())),
    }


def requests(count: int, seed: int) -> Iterator[list[bytes]]:
    """Whole requests, in pieces: each body with a head that is mostly plain, at times odd."""
    source, choice = Bodies(seed), random.Random(seed)
    for _ in range(count):
        path, body = source.next()
        lines = [f"Content-Type: {choice.choice(TYPES) if choice.random() < 0.1 else TYPES[0]}"]
        lines += _extra(choice)
        if choice.random() < 0.04:
            body, encoding = _encoded(choice, body)
            lines.append(f"Content-Encoding: {encoding}")
        if choice.random() < 0.1:
            yield [head(path, *lines, "Transfer-Encoding: chunked"), *_chunks(choice, body)]
        else:
            yield [head(path, *lines, f"Content-Length: {len(body)}"), body]


def _extra(choice: random.Random) -> list[str]:
    odd = choice.choice(["", "x", "a" * 5000, "\xff\xfe", "é", "0" * 200, "'; --"])
    names = ["x-toolkit-label", "x-smg-routing-key", "x-request-id", "traceparent", "Authorization"]
    lines = [f"{choice.choice(names)}: {odd}"] if choice.random() < 0.1 else []
    return [*lines, "Expect: 100-continue"] if choice.random() < 0.01 else lines


def _encoded(choice: random.Random, body: bytes) -> tuple[bytes, str]:
    kind = choice.randrange(8)
    if kind == 0:
        return gzip.compress(body, 1), "gzip"
    if kind == 1:
        return zlib.compress(body), "deflate"
    if kind == 2:
        return gzip.compress(body, 1)[:-5], "gzip"
    if kind == 3:  # a bomb: 16 MiB from 16 KiB
        return gzip.compress(b'{"prompt": "' + b"a" * 2**24, 9), "gzip"
    if kind == 4:
        return gzip.compress(gzip.compress(body, 1), 1), "gzip, gzip"
    return body, choice.choice(["gzip", "deflate", "br", "zstd", "identity", "x", ""])


def _chunks(choice: random.Random, body: bytes) -> list[bytes]:
    size = choice.choice([1000, 30_000])
    if len(body) < 2000:
        size = choice.choice([1, 7, 1000])
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return [b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]
