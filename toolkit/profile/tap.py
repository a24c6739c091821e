"""Listen to every worker: experts, steps, times of requests, KV transfers, and who they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from toolkit.contract.events import Hello, KvTransfer, OtherContract, decode
from toolkit.contract.frames import (
    DroppedHead,
    ExpertsHead,
    FinishedHead,
    Head,
    StepsHead,
    decode_head,
)
from toolkit.contract.paths import EVENTS, EXPERTS
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch.keys import headers_at
from toolkit.profile_folder.errors import ProfileError

if TYPE_CHECKING:
    import aiohttp
    import numpy as np

PHASES = ("prefill", "decode")
LINE_LIMIT = 2**20
MOST_HELD = 2**29
"""Bytes of experts that wait here to be taken; what comes beyond is dropped and counted."""


@dataclass(frozen=True, slots=True)
class PhaseRows:
    """What one phase of a request was routed to: ids int16 [rows, layers, top_k].

    `rank` names the worker (url, DP rank), `end` is its clock when the phase had ended.
    """

    ids: np.ndarray
    rank: tuple[str, int]
    end: float
    prompt_tokens: int
    cached_tokens: int
    whole: bool
    heard: float
    """Our own monotonic clock when it came in."""


@dataclass
class Heard:
    """Everything that came in. `steps` per rank: float64 rows as `columns`, `end` absolute.

    `finished` per rank: float64 rows as `finished_columns` (see `patches.steps.request_times`),
    `end` absolute.
    """

    experts: dict[str, dict[str, PhaseRows]] = field(default_factory=dict)
    steps: dict[tuple[str, int], list[np.ndarray]] = field(default_factory=dict)
    steps_at: dict[tuple[str, int], float] = field(default_factory=dict)
    """Our own monotonic clock when a rank's last block of steps came in."""
    columns: tuple[str, ...] = ()
    behind: dict[tuple[str, int], float] = field(default_factory=dict)
    """What to add to a rank's clock to get ours, in seconds; too much by the fastest delivery of a
    block that was seen, which is milliseconds."""
    finished: dict[tuple[str, int], list[np.ndarray]] = field(default_factory=dict)
    finished_columns: tuple[str, ...] = ()
    transfers: list[tuple[float, float, float]] = field(default_factory=list)
    held: int = 0
    """Bytes of `experts`."""
    dropped: int = 0
    """Frames that did not come, or found no room here, as they were read too slowly."""

    def rank_steps(self, rank: tuple[str, int]) -> np.ndarray:
        """Step rows of one rank since they were last cleared, float64 [M, F + all layers]."""
        import numpy as np

        blocks = self.steps.get(rank)
        return np.concatenate(blocks) if blocks else np.zeros((0, len(self.columns)))

    def all_steps(self, layers: list[int]) -> np.ndarray:
        """Every rank's rows, with the distinct experts of `layers` only."""
        import numpy as np

        fixed = len(self.columns)
        keep = [*range(fixed), *(fixed + layer for layer in layers)]
        found = [self.rank_steps(rank) for rank in self.steps]
        found = [rows[:, keep] for rows in found if rows.shape[1] >= len(keep)]
        return np.concatenate(found) if found else np.zeros((0, len(keep)))

    def take_transfers(self, at_once: int) -> np.ndarray:
        """float64 [R, 4]: what was transferred since the last call, and how many ran at once."""
        import numpy as np

        rows, self.transfers = self.transfers, []
        moved = np.array(rows, dtype=np.float64).reshape(-1, 3)
        return np.column_stack([moved, np.full(len(moved), float(at_once))])

    def take(self, rid: str) -> dict[str, PhaseRows]:
        """The phases of a request, which are not kept any more."""
        phases = self.experts.pop(rid)
        self.held -= sum(rows.ids.nbytes for rows in phases.values())
        return phases

    def take_all(self) -> list[dict[str, PhaseRows]]:
        """The same of all requests, whole or not."""
        return [self.take(rid) for rid in list(self.experts)]

    def cut(self) -> Heard:
        """All but the experts, which are not kept here any more."""
        taken = replace(self, experts={}, held=0)
        self.steps, self.finished, self.transfers = {}, {}, []
        return taken


class Tap:
    """`async with Tap(session, urls) as tap`: connected to every worker, or ProfileError.

    Without `events` only the greeting is read of a worker's events: no transfers are heard of, and
    neither side works for a stream that nobody reads.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        urls: list[str],
        share: float = 0.0,
        events: bool = True,
    ) -> None:
        self._session = session
        self._urls = list(dict.fromkeys(urls))
        self._share = share
        self._events = events
        self._tasks: list[asyncio.Task[None]] = []
        self._responses: list[aiohttp.ClientResponse] = []
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self.lost: str | None = None
        self.heard = Heard()
        self.hellos: dict[str, Hello] = {}

    async def __aenter__(self) -> Tap:
        try:
            for url in self._urls:
                await self._listen(url)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for response in self._responses:
            response.close()

    async def request(
        self, rid: str, phases: tuple[str, ...], timeout_s: float
    ) -> dict[str, PhaseRows]:
        """Wait for a request's rows of `phases` and take them out."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not all(phase in self.heard.experts.get(rid, {}) for phase in phases):
            if self.lost is not None:
                raise ProfileError(self.lost)
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                got = sorted(self.heard.experts.get(rid, {})) or "nothing"
                dropped = self.heard.dropped
                why = f" ({dropped} frames were read too slowly and dropped)" if dropped else ""
                raise ProfileError(
                    f"the workers sent {got} of request {rid}'s experts, not all{why}"
                )
            future = self._waiting.setdefault(rid, asyncio.get_running_loop().create_future())
            await asyncio.wait([future], timeout=left)
            self._waiting.pop(rid, None)
        return self.heard.take(rid)

    async def _listen(self, url: str) -> None:
        import aiohttp

        try:
            mine = headers_at(url)
            events = await self._session.get(url + EVENTS, headers=mine)
            self._responses.append(events)
            frames = await self._session.get(
                url + EXPERTS, params={"share": str(self._share)}, headers=mine
            )
            self._responses.append(frames)
            if 401 in (events.status, frames.status):
                raise ProfileError(
                    f"{url} wants the key of its run: ask as the user who launched it, on its host,"
                    f" or export {WORKER_KEY_VARIABLE}=..."
                )
            if events.status != 200 or frames.status != 200:
                raise ProfileError(
                    f"{url} has no {EXPERTS}: it was not started by this toolkit's launcher"
                )
            greeting = decode(await events.content.readline())
            if not isinstance(greeting, Hello):
                raise ProfileError(f"the worker at {url} does not say who it is")
            self.hellos[url] = greeting
            await anext(_frames(frames))  # its first ping: from here on nothing is missed
        except OtherContract as error:
            raise ProfileError(f"the worker at {url}: {error}") from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ProfileError(f"no answer from the worker at {url}: {error}") from error
        except StopAsyncIteration:
            raise ProfileError(f"the worker at {url} went away") from None
        if self._events:
            self._tasks.append(asyncio.create_task(self._follow_events(url, events)))
        else:
            events.close()
        self._tasks.append(asyncio.create_task(self._follow_frames(url, frames)))

    async def _follow_events(self, url: str, response: aiohttp.ClientResponse) -> None:
        try:
            async for line in response.content:
                event = decode(line)
                if isinstance(event, KvTransfer) and not event.ahead:
                    self.heard.transfers.append((event.tokens, event.bytes, event.seconds))
        finally:
            self._fail(f"the worker at {url} went away")

    async def _follow_frames(self, url: str, response: aiohttp.ClientResponse) -> None:
        try:
            async for head, body in _frames(response):
                match head:
                    case ExpertsHead():
                        self._take_experts(url, head, body)
                    case StepsHead():
                        self._take_steps(url, head, body)
                    case FinishedHead():
                        self._take_finished(url, head, body)
                    case DroppedHead():
                        self.heard.dropped += head.frames
        finally:
            self._fail(f"the worker at {url} went away")

    def _fail(self, what: str) -> None:
        self.lost = what
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)

    def _take_experts(self, url: str, head: ExpertsHead, body: bytes) -> None:
        import numpy as np

        heard = self.heard
        if heard.held and heard.held + len(body) > MOST_HELD:
            heard.dropped += 1
            return
        heard.held += len(body)
        ids = np.frombuffer(body, dtype=np.int16).reshape(head.shape)
        rows = PhaseRows(
            ids=ids,
            rank=(url, head.dp_rank),
            end=head.end,
            prompt_tokens=head.prompt_tokens,
            cached_tokens=head.cached_tokens,
            whole=head.whole,
            heard=time.monotonic(),
        )
        phases = heard.experts.setdefault(head.rid, {})
        before = phases.get(head.phase)
        heard.held -= 0 if before is None else before.ids.nbytes
        phases[head.phase] = rows
        future = self._waiting.get(head.rid)
        if future is not None and not future.done():
            future.set_result(None)

    def _take_steps(self, url: str, head: StepsHead, body: bytes) -> None:
        rows, rank, heard = _rows(head, body), (url, head.dp_rank), self.heard
        heard.columns = tuple(head.fields)
        heard.steps.setdefault(rank, []).append(rows)
        heard.steps_at[rank] = now = time.monotonic()
        behind = now - float(rows[:, heard.columns.index("end")].max())
        heard.behind[rank] = min(behind, heard.behind.get(rank, behind))

    def _take_finished(self, url: str, head: FinishedHead, body: bytes) -> None:
        self.heard.finished_columns = tuple(head.fields)
        self.heard.finished.setdefault((url, head.dp_rank), []).append(_rows(head, body))


def _rows(head: StepsHead | FinishedHead, body: bytes) -> np.ndarray:
    """A frame's float32 rows as float64, `end` absolute."""
    import numpy as np

    rows = np.frombuffer(body, dtype=np.float32).reshape(head.shape).astype(np.float64)
    rows[:, head.fields.index("end")] += head.origin
    return rows


async def _frames(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[Head, bytes]]:
    """(head, body) of each frame of `patches.streams.expert_stream`, until the worker goes away."""
    while line := await response.content.readline():
        head = decode_head(line)
        yield head, await response.content.readexactly(head.bytes)


async def worker_urls(session: aiohttp.ClientSession, router: str) -> dict[str, str]:
    """URL -> role of the workers behind a router of ours; ProfileError when there is none."""
    import aiohttp

    try:
        async with session.get(router.rstrip("/") + "/workers") as response:
            rows = (await response.json())["workers"] if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProfileError(
            f"nothing answers at {router} ({error}); start one with `toolkit launch FILE.yaml`, or "
            "let the profiler do it with --deployment FILE.yaml"
        ) from error
    except (ValueError, KeyError) as error:
        raise ProfileError(f"{router}/workers is not that of a toolkit router") from error
    if not rows:
        raise ProfileError(f"{router} is not a toolkit router (or wants a key: --api-key-env)")
    if any("url" not in row for row in rows):
        raise ProfileError(
            f"{router} tells its workers' addresses to its admin only: give the admin key with "
            "--api-key-env, or its admin port as the router"
        )
    return {row["url"]: row["role"] for row in rows}
