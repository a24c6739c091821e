"""Hand captured experts and step rows to whoever listens: `GET /toolkit/experts`.

A response of frames (`toolkit.contract.frames`): a line of JSON that says what follows and how many
bytes, then the bytes.

Experts come for requests that asked for them. With `?share=0.1` a tenth of all requests is asked
for as long as somebody listens so: the choice is by request id, so that prefill and decode workers
pick the same ones. `finished` follows the `steps` in which requests ended; sums of decode steps go
to the event stream too (`patches.streams.step_summary`). Neither text nor token ids ever pass here.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict

from patches import server_state
from patches.base import Hook, Patch, Process, resolve
from patches.experts.capture import ExpertsCaptured
from patches.layers import Original
from patches.sglang_types import Asked, Tokenized, TokenizerManager
from patches.steps.request_times import FIELDS as FINISHED_FIELDS
from patches.steps.step_log import FIELDS, StepBlock
from patches.streams import event_stream
from patches.streams.step_join import StepJoin
from patches.streams.step_summary import StepSummary
from patches.tickets import add_capture
from toolkit.contract.events import Steps
from toolkit.contract.frames import (
    DroppedHead,
    ExpertsHead,
    FinishedHead,
    Head,
    PingHead,
    StepsHead,
    encode,
)
from toolkit.contract.paths import EXPERTS

APP = "sglang.srt.entrypoints.http_server.app"
PING_AFTER_S = 1.0
PING = encode(PingHead())
MAX_BACKLOG, MAX_BACKLOG_BYTES = 2_000, 256 * 2**20
"""Frames, and bytes of them, that a listener may leave unread: they are held in memory. What comes
beyond is dropped, and it hears of how much. One frame may be larger: a long prompt's."""
SHARES = 10_000


class ExpertListener:
    """One listener's frames that are not sent yet. `share`: of all requests that it asked for."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.size = 0
        """Bytes that wait."""
        self._dropped = self._dropped_size = 0
        """Frames, and their bytes, of which it has not heard yet."""

    def put(self, frame: bytes) -> None:
        """One more; it is dropped where too much waits already."""
        waits = self._queue.qsize()
        if waits >= MAX_BACKLOG or (waits and self.size + len(frame) > MAX_BACKLOG_BYTES):
            self._dropped += 1
            self._dropped_size += len(frame)
            return
        if self._dropped:
            self._wait(self._what_was_dropped())
        self._wait(frame)

    def _wait(self, frame: bytes) -> None:
        self._queue.put_nowait(frame)
        self.size += len(frame)

    def _what_was_dropped(self) -> bytes:
        head = DroppedHead(self._dropped, self._dropped_size)
        self._dropped = self._dropped_size = 0
        return encode(head)

    async def get(self) -> bytes:
        """The next frame; what was dropped, where nothing else waits."""
        if self._dropped and self._queue.empty():
            return self._what_was_dropped()
        frame = await self._queue.get()
        self.size -= len(frame)
        return frame


class ExpertHub:
    """Fans frames out to every listener; keeps nothing when nobody listens. `publish` takes the
    sums of decode steps, for the router."""

    def __init__(self, publish: Callable[[Steps], None]) -> None:
        self._listeners: set[ExpertListener] = set()
        self._summary = StepSummary(publish)
        self._join = StepJoin()

    @property
    def share(self) -> float:
        """The largest share of requests that a listener asked for, in [0, 1]."""
        return max((each.share for each in self._listeners), default=0.0)

    def sampled(self, rid: str) -> bool:
        """Whether this request is in the share. The same answer on every worker."""
        return zlib.crc32(rid.encode()) % SHARES < self.share * SHARES

    def publish(self, head: Head, body: bytes) -> None:
        frame = encode(head, body)
        for each in self._listeners:
            each.put(frame)

    def publish_experts(self, captured: ExpertsCaptured) -> None:
        """Handler of the scheduler's message."""
        if self._listeners:
            head = asdict(captured)
            ids = head.pop("ids")
            self.publish(ExpertsHead(**head), ids)

    def publish_steps(self, block: StepBlock) -> None:
        """Handler of the scheduler's message."""
        self._summary.count(block)
        for whole in self._join.take(block):
            self._summary.count_experts(whole)
            if self._listeners:
                self._publish_whole(whole)

    def _publish_whole(self, block: StepBlock) -> None:
        rank, origin = block.dp_rank, block.origin
        self.publish(StepsHead(rank, origin, FIELDS, block.shape), block.rows)
        if block.finished:
            shape = (len(block.finished) // (4 * len(FINISHED_FIELDS)), len(FINISHED_FIELDS))
            self.publish(FinishedHead(rank, origin, FINISHED_FIELDS, shape), block.finished)

    async def subscribe(self, share: float) -> AsyncIterator[bytes]:
        """Frames for one listener until it goes away."""
        listener = ExpertListener(share)
        self._listeners.add(listener)
        try:
            yield PING
            while True:
                try:
                    frame = await asyncio.wait_for(listener.get(), PING_AFTER_S)
                except TimeoutError:
                    frame = PING
                yield frame
        finally:
            self._listeners.discard(listener)


def hub_of(manager: TokenizerManager) -> ExpertHub:
    """That of this server."""
    state = server_state.of(manager)
    return state.find(ExpertHub) or state.keep(ExpertHub(event_stream.hub_of(manager).publish))


def _dispatch_frames(original: Original[None], manager: TokenizerManager) -> None:
    original(manager)
    hub = hub_of(manager)
    manager._result_dispatcher += type(manager._result_dispatcher)(
        [(ExpertsCaptured, hub.publish_experts), (StepBlock, hub.publish_steps)]
    )


def _ask_for_sampled(
    original: Original[Tokenized],
    manager: TokenizerManager,
    obj: Asked,
    *args: object,
    **kwargs: object,
) -> Tokenized:
    tokenized = original(manager, obj, *args, **kwargs)
    # Parallel samples get other ids after this, for which no ticket of this one would be good.
    single = isinstance(obj.rid, str) and tokenized.sampling_params.n == 1
    hub = hub_of(manager)
    if hub.share and single and hub.sampled(str(obj.rid)):
        add_capture(tokenized)
    return tokenized


def _add_route() -> None:
    from fastapi import Query
    from fastapi.responses import StreamingResponse

    async def experts(share: float = Query(0.0, ge=0.0, le=1.0)) -> StreamingResponse:
        hub = hub_of(server_state.serving_manager())
        return StreamingResponse(hub.subscribe(share), media_type="application/octet-stream")

    resolve(APP).add_api_route(EXPERTS, experts, methods=["GET"])


PATCH = Patch(
    name="expert_stream",
    why="profiles, signatures and benchmarks read experts and step times from a running worker",
    independent_of={
        "move_order": "each hears messages of its own kind",
        "relocation_order": "each hears messages of its own kind",
    },
    processes=frozenset({Process.MAIN}),
    hooks=(
        Hook(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager.init_request_dispatcher",
            _dispatch_frames,
            ("self",),
        ),
        Hook(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object",
            _ask_for_sampled,
            ("self", "obj", "input_text", "input_ids"),
        ),
    ),
    requires=(APP,),
    attach=_add_route,
)
