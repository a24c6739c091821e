"""The streaming hot path: worker bytes in, client bytes out, no task in between.

Per received chunk: strip the `: ids` comment, keep the ids, remember the raw events, write one
HTTP chunk to the client's transport. Events are parsed only when a stream must be changed: a
replay to trim, prompt log-probabilities to add, or a choice index to rewrite. The first token may
have come from the prefill worker (`early`): then what decode repeats of it is cut, and all that
comes behind is raw again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.router.departure import Departure
from toolkit.router.failure import Failure, abort_of, failure_of
from toolkit.router.grammars import FINISHED_ABORTED, grammar_of, is_over
from toolkit.router.held_back import HeldBack
from toolkit.router.merge import add_prompt_logprobs
from toolkit.router.request import SubRequest, public_id
from toolkit.router.resume import Sent, Trimmer, parse_event, split_events
from toolkit.router.stream_memory import GRAIN, StreamMemory
from toolkit.router.upstream import Call

if TYPE_CHECKING:
    from toolkit.router.budget import Charge

ID_DIGITS = 9
"""No vocabulary has so many tokens that an id would have more."""
BESIDE = 64
"""Bytes that an event takes beside what is in it, its ids among them."""
LINES = 2
"""Ends of lines in one event without a name."""
EVENT_MAX = 32 * 2**20
"""Bytes of one SSE event; those of /generate hold all of the answer so far."""


class Output(Protocol):
    """Where events go. `write` takes whole SSE events and never blocks."""

    def write(self, events: bytes) -> None: ...
    def join(self, relay: Relay) -> None: ...


class Relay:
    """One sub-request's stream, over all its attempts."""

    def __init__(
        self,
        sub_request: SubRequest,
        out: Output,
        incremental: bool = False,
        charge: Charge | None = None,
    ) -> None:
        """`charge`: of the request, which pays for what is kept of the stream."""
        self._sub_request = sub_request
        self._write = out.write
        self._incremental = incremental
        self.sent = Sent(sub_request.endpoint, incremental)
        self.ids = bytearray()
        """The ids that went out, as `b" 12 34"`."""
        self._memory = StreamMemory(charge)
        self._uncounted = 0
        """Bytes that have come since what is held was charged last."""
        self._forgotten_ids = 0
        self._held_bytes = 0
        self.beside = 0
        """Bytes that wait elsewhere for this stream: of a worker that is to go on with it."""
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun = False
        self.failure: Failure | None = None
        self.ended = False
        self._call: Call | None = None
        self._tail = bytearray()
        """Of an event that has not ended."""
        self._trimmer: Trimmer | None = None
        self._held: list[bytes] | None = None
        self._prompt: dict[str, Any] | None = None
        self._slow = False
        self._strayed = False
        self._rename: tuple[bytes, bytes] | None = None
        self.paused = False
        """Its client is slow to read, so that nothing is read from the worker."""
        grammar = grammar_of(sub_request.endpoint)
        self._fails, self._fails_within, self._ends = grammar[:3]
        self._replayed = 0
        self._cut: list[bytes] = []
        """The ids that this attempt has to repeat, as the client has them."""
        self._recreate: tuple[bytes, bytes] | None = None
        self._count: Callable[[int], None] | None = None
        self._departure: Departure | None = None
        self._gate: Callable[[bytes], bytes] | None = None
        """What is let through of whole events, where not all is."""
        self._held_back: HeldBack | None = None
        self._brought = 0
        """Output tokens that the worker was told with the request."""
        self.sent_at = 0.0
        """When the client was sent something last."""
        self.on_event: Callable[[], None] | None = None
        """Called once, when it is sent something again."""
        out.join(self)

    def begin(
        self,
        call: Call,
        hold: bool,
        count: Callable[[int], None] | None = None,
        ids: tuple[str, str] = ("", ""),
        brought: int | None = None,
    ) -> None:
        """A new attempt; with `hold`, nothing goes out before `release` (prompt logprobs). `count`
        is told of tokens as they come, where somebody wants to know. `ids`: under which the worker
        has the request, and the client. `brought`: output tokens that it was told, where those are
        not the ones that the attempt resumes."""
        theirs, public = ids
        self._rename = None if theirs == public else (theirs.encode(), public_id(public))
        self.paused = False
        self._call = call
        self._count = count
        self.first = asyncio.get_running_loop().create_future()
        self._begun = False
        self.failure = None
        self._tail = bytearray()
        self._held = [] if hold else None
        self._held_bytes = 0
        self._prompt = None
        self._trimmer = None
        self._recreate = None
        self._strayed = False
        self._departure = self._held_back = self._gate = None
        self._brought = len(self._sub_request.resume_ids) if brought is None else brought
        if self.sent.events:
            self._trim()
        self._slow = hold or self._trimmer is not None

    def _trim(self) -> None:
        self._trimmer = Trimmer(self._sub_request.endpoint, self.sent.progress(), self._incremental)
        self._cut = bytes(self.ids).split()
        self._replayed = 0

    def early(self, events: bytes, ids: bytes) -> bool:
        """The first token, of the prefill worker: whole events under the client's id, ids as
        `b" 12"`. False, and nothing is sent, when the decode worker's has come before it."""
        if self.sent.events or self._begun or self._held is not None:
            return False
        self.ids += ids
        self.sent.add(events)
        self._write(events)
        self.sent_at = monotonic()
        self._sub_request.track.told(self.sent_at)
        if self._call is not None:  # its own is on the way
            self._trim()
            self._slow = True
        return True

    def release(self, prompt: dict[str, Any] | None) -> None:
        """The prefill's answer is here: let out what was held."""
        held, self._held = self._held, None
        self._held_bytes = 0
        self._prompt = prompt
        for data in held or ():
            self._feed_slow(data)

    @property
    def caught_up(self) -> bool:
        """Whether this attempt has told all that the client had before it."""
        return self._begun and self._held is None and self._replayed >= len(self._cut)

    def leave(self) -> None:
        """The worker is being told to drop it: what it still sends is shown as far as it is the
        undisturbed stream's (`toolkit.router.departure`)."""
        self._departure = Departure(self._sub_request.endpoint)
        self._gate = self._departure.take

    def hold_back(self, most: int) -> None:
        """Until `let_out`, the client gets no event by which it would have more than `most` tokens:
        they may be another worker's to say."""
        self._held_back = HeldBack(most - self.tokens)
        self._gate = self._held_back.take

    def let_out(self) -> None:
        """This worker goes on with it after all."""
        held, self._held_back, self._gate = self._held_back, None, None
        if held is not None and held.events:
            self._pass(b"".join(held.events))

    def take_over(
        self, call: Call, count: Callable[[int], None] | None, ids: tuple[str, str], brought: int
    ) -> None:
        """Another worker goes on with it, within the attempt; what was held back is its to say."""
        paused = self.paused
        self.begin(call, hold=False, count=count, ids=ids, brought=brought)
        if paused:
            self.pause()

    @property
    def is_over(self) -> bool:
        """Since `leave`: it has come to its own end."""
        return self._departure is not None and self._departure.over

    def depart(self) -> None:
        """Nothing more is taken from this attempt. The ids that it did not show count."""
        departure, self._departure, self._gate = self._departure, None, None
        if departure is None:
            return
        ids = departure.ids()
        self.ids += ids
        if self._count is not None and ids:
            self._count(ids.count(b" "))

    @property
    def tokens(self) -> int:
        return self._forgotten_ids + self.ids.count(b" ")

    def known_ids(self) -> list[int]:
        """The ids that its client has. ValueError: a worker told some that are none."""
        ids = self.ids.split()
        if not all(token.isdigit() and len(token) <= ID_DIGITS for token in ids):
            raise ValueError("a worker told ids of tokens that are none")
        return [int(token) for token in ids]

    @property
    def forgotten(self) -> bool:
        """What its client has is not known any more, so that nobody else can go on with it."""
        return self.sent.forgotten

    def _count_memory(self) -> bool:
        """Charge what is held now. Where there is no room for it, what only a resume needs is let
        go; False when that is not enough."""
        held = self._held_back
        self._uncounted = 0
        size = self.sent.kept + len(self.ids) + len(self._tail) + self._held_bytes + self.beside
        if self._memory.is_now(size if held is None else size + held.size):
            return True
        if self._trimmer is not None or self._held is not None or self._gate is not None:
            return False  # it is being cut, or moved, by what it has
        self._forgotten_ids += self.ids.count(b" ")
        self.ids = bytearray()
        self.sent.forget()
        return self._memory.is_now(len(self._tail) + self.beside)

    def _take_ids(self, ids: bytes) -> None:
        if self.sent.forgotten:
            self._forgotten_ids += ids.count(b" ")
        else:
            self.ids += ids
        if self._count is not None and ids:
            self._count(ids.count(b" "))

    def feed(self, data: bytes) -> None:
        """The sink of the decode's call."""
        if self._tail:
            data = self._whole(data)
            if not data:
                return
        if data[-2:] != b"\n\n":
            cut = data.rfind(b"\n\n") + 2
            self._tail += data[cut:] if cut > 1 else data
            if cut == 1:
                return
            data = data[:cut]
        if self._rename is not None:
            data = data.replace(*self._rename)
        if self._gate is not None:
            data = self._gate(data)
            if not data:
                return
        self._pass(data)

    def _pass(self, data: bytes) -> None:
        """Whole events, under the client's id."""
        if self._slow:
            self._feed_slow(data)
            return
        if self._recreate is not None:
            data = data.replace(*self._recreate)
        ids = b""
        events = data
        if data[:2] == b": ":
            end = data.find(b"\n")
            ids = data[1:end]
            events = data[end + 1 :]
        one = events.count(b"\n") == LINES
        if one:  # cheap, and mostly so
            told = events.startswith(self._fails)
            for mark in self._fails_within:
                told = told or mark in events
        else:
            told = b"\n\n: " in events or any(
                mark in events for mark in self._fails + self._fails_within
            )
        if told or self.failure is not None:
            for event in split_events(data):
                self._one(event + b"\n\n")
            return
        if ids:
            self._take_ids(ids)
        self._send(events, one)

    def _whole(self, data: bytes) -> bytes:
        """Tail and data once an event ends in them, nothing before; each byte is looked at once."""
        tail = self._tail
        start = len(tail) - 1
        tail += data
        if tail.find(b"\n\n", start) < 0:
            if len(tail) > EVENT_MAX and self._call is not None:
                self._call.close(f"sent an event of more than {EVENT_MAX >> 20} MiB", "lost")
            self._bound(len(tail))
            return b""
        self._tail = bytearray()
        return bytes(tail)

    def _bound(self, size: int) -> None:
        """What cannot be sent yet has grown to `size` bytes."""
        if not self._count_memory() and size > GRAIN and self._call is not None:
            self._call.close("sent more at once than the router has memory for", "lost")

    def _send(self, events: bytes, one: bool = False) -> None:
        """`one`: it is a single event."""
        self.sent.add(events)
        self._write(events)
        self._uncounted += len(events) + BESIDE
        if self._uncounted > GRAIN:
            self._count_memory()
        self.sent_at = monotonic()
        if self.on_event is not None:
            tell, self.on_event = self.on_event, None
            tell()
        if not self._begun:
            self._begun = True
            self.first.set_result(None)
            self._sub_request.track.told(self.sent_at)
        if events.startswith(self._ends) if one else is_over(events, self._ends):
            self.ended = True

    def _one(self, data: bytes) -> None:
        ids, event = strip(data)
        if self.failure is not None:
            return
        self.failure = failure_of(event, self._sub_request.endpoint)
        if FINISHED_ABORTED in event and not ids and not self.tokens and not self.forgotten:
            self.failure = self.failure or abort_of(event, self.sent.progress())
        if self.failure is not None:
            return
        self._take_ids(ids)
        self._send(event)

    def _feed_slow(self, data: bytes) -> None:
        if self._held is not None:
            self._held.append(data)
            self._held_bytes += len(data)
            self._bound(self._held_bytes)
            return
        for raw in split_events(data):
            ids, event = strip(raw + b"\n\n")
            if self._prompt is not None:
                event = add_prompt_logprobs(self._sub_request.endpoint, event, self._prompt)
                if self._sub_request.endpoint == "completions" and parse_event(event):
                    self._prompt = None  # only the first chunk carries them
            if self._trimmer is None:
                if self._recreate is not None:
                    event = event.replace(*self._recreate)
                self._one(b":" + ids + b"\n" + event if ids else event)
                continue
            self._replay(ids, event)
            self._go_on_raw()

    def _go_on_raw(self) -> None:
        """Once all of a first token is repeated, nothing is left to cut."""
        trimmer = self._trimmer
        if (
            trimmer is None
            or self._sub_request.resume_ids
            or self._replayed < max(len(self._cut), self._brought)
            or not trimmer.passed
        ):
            return
        self._trimmer = None
        self._recreate = trimmer.recreate
        self._slow = self._prompt is not None

    def _replay(self, ids: bytes, event: bytes) -> None:
        """Count the replayed ids; only those beyond what was sent are new."""
        if self.failure is None:
            self.failure = failure_of(event, self._sub_request.endpoint)
        if self.failure is not None or self._strayed:
            return
        assert self._trimmer is not None
        new = ids.split()
        known = self._cut[self._replayed : self._replayed + len(new)]
        if new[: len(known)] != known:
            self._stray()
            return
        before = self._replayed
        self._replayed += len(new)
        if new[len(known) :]:
            self.ids += b" " + b" ".join(new[len(known) :])
        # Of a first token that came early it hears here; what a resume brings along it knows.
        fresh = self._replayed - max(before, min(self._replayed, self._brought))
        if self._count is not None and fresh:
            self._count(fresh)
        cut = self._trimmer.cut(event)
        if not self._begun:
            self._begun = True
            self.first.set_result(None)
        if cut is not None:
            self._send(cut)

    def _stray(self) -> None:
        """The worker repeats other tokens than the client has: it must not go on."""
        self._strayed = True
        if self._call is not None:
            self._call.close("repeats other tokens than the client has", "lost")

    def pause(self) -> None:
        self.paused = True
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        self.paused = False
        if self._call is not None:
            self._call.resume()


def strip(data: bytes) -> tuple[bytes, bytes]:
    """Split `: 12 34\\ndata: ...` into ids (with their leading space) and the event."""
    if data[:2] != b": ":
        return b"", data
    end = data.find(b"\n")
    return data[1:end], data[end + 1 :]
