"""A stand-in SSE worker: `python -m tests.standin.worker --role decode [...]`.

It prints its port on the first line of standard output. It serves /toolkit/events, /health,
/abort_request, /stats and the three generation endpoints; its "model" is a fixed function of the
prompt, so that any worker continues any other's output: token i of prompt p is `w(p, i)`.
A raw uvloop protocol, since in the relay benchmark it must not cost more than what it measures.

Faults on demand: the request field `crash_after` (tokens) with `crash_role` makes the process kill
itself with SIGKILL; `fail_status` answers an error; with `lose_kv` a prefill answers 500 a moment
after it was done, as when its KV did not get across; a decode loses the first try of a request with
`lost`, and goes on to say that it has none ("told") or says nothing ("stuck"); SIGSTOP and SIGKILL
work as on anything else. `poison` with a role kills every worker of that role that takes the
request; with `announced` it says before that one of its processes died, as a patched one does.

With `--signature-layers` prefills send signatures: of the counts in the request's field
`standin_counts`, or of counts that are a fixed function of the prompt; `standin_signature` is sent
as it is. With `--steps` decodes say what their steps were. POST /standin/mode makes it sick
(`tests.standin.faults`); with `--patient` it serves any body somehow (`tests.standin.patient`).

With `--frames` streams go into frames (`tests.standin.framing`) where a relay asks for that.

With `--heartbeat` it says ten times a second, or every so many seconds, whether its "scheduler"
goes on, and a ping only where it has said nothing for a second, as a real one. A request with
`stands_after` (tokens) makes a worker of the role `stands_role` (decode) stand still there.

With `--first-token` prefills tell the first token of a stream at once, as `patches.pd.first_token`
does; not that of a request with `hold_first`. `refuse_first`: they refuse it in the stream, with
400 or the status that it is.
`--done-ms`: they say so much later that they are done. `--prefill-only`: they answer a request
whose KV nobody will ask for.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections import Counter
from typing import Any

import httptools
import orjson
import uvloop

from patches.streams.event_hub import PING_AFTER_S
from patches.streams.notice_board import NoticeBoard
from tests.standin.faults import MODES, Faults
from tests.standin.framing import Frames
from tests.standin.moving import LATE_S, Orders, ahead_of
from tests.standin.patient import sane
from tests.standin.signatures import signature_event
from tests.standin.streams import STREAMS, late_of, prompt_of, resumed_ids, seed_of, token_id
from toolkit.contract import (
    VERSION,
    boot_id,
    events,
    headers,
    notices,
    prefill_only,
    run_id,
    step_frames,
)
from toolkit.contract.notices import Notice, Posted
from toolkit.contract.paths import EVENTS, MOVE, NOTICES, PLACEMENT, STEP_FRAMES

WHOLE = ("/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify", "/v1/messages/count_tokens")
"""Endpoints whose body comes back."""
NEAR_TOKENS = 100
"""Of a prompt whose decode worker is asked for before it is through."""

HEAD_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n%b\r\n"
)
HEAD_FRAMED = f"{headers.STEP_FRAMES}: 1\r\n".encode()


class Server:
    """One worker's state."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.role = args.role
        self.prefills: dict[str, asyncio.Event] = {}
        self.arrived: dict[int, asyncio.Event] = {}
        self.subscribers: set[Protocol] = set()
        self.running: dict[str, asyncio.Task[None]] = {}
        self.aborted: list[str] = []
        self.dropped: set[str] = set()
        """Of those that run, the ones that are to end softly."""
        self.served = 0
        self.peak = 0
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.rooms: dict[int, asyncio.Event] = {}
        self.step: asyncio.Future[None] | None = None
        layers = args.signature_layers
        self.layers = [int(layer) for layer in layers.split(",")] if layers else []
        self.stepped = 0
        self.batched = 0
        self.beats = 0
        self.said_at = 0.0
        self.quiet_s = PING_AFTER_S if args.heartbeat else 0.0
        """Of silence, before a ping."""
        self.connections: set[Protocol] = set()
        self.faults = Faults(args.mode)
        self.taken: dict[str, dict[str, Any]] = {}
        """Bodies of the requests that run."""
        self.orders = Orders(self.publish)
        self.frames = Frames()
        self.board = NoticeBoard(self)
        self.boot = boot_id.own()

    async def beat(self) -> None:
        """Count rounds, as a scheduler does that goes on."""
        while True:
            self.beats += self.faults.mode != "stand"
            self.publish(events.Heartbeat(self.beats, bool(self.running)))
            await asyncio.sleep(self.args.heartbeat)

    def stand_at(self, body: dict[str, Any], tokens: int) -> None:
        """Hang from here on, if the request is such a one."""
        if body.get("stands_after") == tokens and body.get("stands_role", "decode") == self.role:
            self.faults.mode = "stand"
            self.beats += 1  # of the round in which it was taken in

    async def next_step(self) -> None:
        """The next decode step's end: a batch gives every running request its token then."""
        if self.step is None:
            loop = asyncio.get_running_loop()
            self.step = loop.create_future()
            loop.call_later(self.args.step_ms / 1e3, self._end_step)
        await asyncio.shield(self.step)

    def _end_step(self) -> None:
        step, self.step = self.step, None
        assert step is not None
        step.set_result(None)

    def publish(self, event: events.Event) -> None:
        self.said_at = time.monotonic()
        line = events.encode(event)
        for protocol in list(self.subscribers):
            protocol.chunk(line)

    @property
    def routers(self) -> frozenset[str]:
        """Names of those that listen."""
        return frozenset(filter(None, (each.router for each in self.subscribers)))

    def tell_routers(self) -> None:
        """Tell the routers that listen of each other."""
        line = events.encode(events.Routers(tuple(sorted(self.routers))))
        for protocol in list(self.subscribers):
            if protocol.router:
                protocol.chunk(line)

    def tell(self, notice: Notice) -> Posted:
        """One router's notice to others."""
        to = {notice.to} if notice.to else self.routers - {notice.sender}
        line = events.encode(notice)
        for protocol in list(self.subscribers):
            if protocol.router in to:
                protocol.chunk(line)
        return Posted(tuple(sorted(to & self.routers)))

    def publish_load(self) -> None:
        self.peak = max(self.peak, len(self.running))
        for load in self.loads():
            self.publish(load)

    def loads(self) -> list[events.LoadReading]:
        """Of each rank, unless it is mute."""
        if self.args.mute:
            return []
        running = Counter(body.get("routed_dp_rank") or 0 for body in self.taken.values())
        return [
            events.LoadReading(running[rank], 0, running[rank] * 16, 16384, dp_rank=rank)
            for rank in range(self.args.dp_size)
        ]

    def signature(self) -> events.Records | None:
        if not self.layers or self.role != "prefill":
            return None
        return events.Records(self.layers, self.args.experts)

    def publish_steps(self) -> None:
        """A token is taken for a step of all that run, of 16 KV tokens and 4 experts each."""
        if not self.stepped:
            return
        event = events.Steps(
            steps=self.stepped,
            requests=self.batched,
            kv_tokens=self.batched * 16,
            seconds=self.stepped / 1e3,
            distinct=self.stepped * 4.0,
        )
        self.stepped = self.batched = 0
        self.publish(event)

    def patches(self) -> tuple[str, ...]:
        told = {
            "step_log": self.args.steps,
            "first_token": self.args.first_token,
            prefill_only.PATCH: self.args.prefill_only,
            "resume": self.args.resume,
            step_frames.PATCH: self.args.frames,
            notices.PATCH: True,
            "move_order": self.args.moves,
            "move_incoming": self.args.moves,
            "relocation_order": self.args.placement,
        }
        return tuple(name for name, there in told.items() if there)

    def hello(self) -> bytes:
        return events.encode(
            events.Hello(
                contract=self.args.contract,
                role=self.role,
                run=run_id.own(),
                dp_attention=True if self.args.dp_attention else None,
                sglang=self.args.sglang,
                model="standin",
                context_length=8192,
                max_total_tokens=16384,
                max_running_requests=self.args.slots,
                patches=self.patches(),
                stays=self.args.stays,
                fingerprint=self.args.fingerprint,
                page_size=self.args.page_size,
                boot=self.boot,
                signature=self.signature(),
            )
        )

    def about(self, path: str) -> dict[str, Any]:
        """What SGLang tells of itself, its folders, hosts and ports among it."""
        folder = self.args.folder
        if path == "/v1/models":
            card = {"id": "standin", "object": "model", "root": folder, "max_model_len": 8192}
            return {"object": "list", "data": [card | {"permission": [{"id": self.role}]}]}
        return {
            "model_path": folder,
            "tokenizer_path": folder,
            "served_model_name": "standin",
            "is_generation": True,
            "version": "0.5.21",
            "max_total_num_tokens": 16384,
            "host": "10.77.0.1",
            "port": 34567,
            "nccl_port": 34568,
            "dist_init_addr": "node-7.secret-host:5000",
            "launch_command": f"python -m sglang.launch_server --model-path {folder}",
            "internal_states": [{"last_gen_throughput": 1.0, "memory_usage": {"weight": 2}}],
        }


class Protocol(asyncio.Protocol):
    """One connection: parse, then answer from a task or straight away."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.parser = httptools.HttpRequestParser(self)
        self.path = ""
        self.body = bytearray()
        self.ids = False
        self.attempt = 0
        self.head: dict[str, str] = {}
        self.task: asyncio.Task[None] | None = None
        self.can_write = asyncio.Event()
        self.can_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        if self in self.server.subscribers:
            self.server.subscribers.discard(self)
            self.server.tell_routers()
        self.server.frames.closed(self)
        if self.task is not None:
            self.task.cancel()
        self.can_write.set()

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:  # sglang-router first tries HTTP/2
            self.transport.close()

    def on_url(self, url: bytes) -> None:
        self.path = url.decode()
        self.body = bytearray()
        self.ids = False
        self.attempt = 0
        self.head = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.head[name.decode().lower()] = value.decode()
        if name.lower() == headers.IDS.encode():
            self.ids = True
        elif name.lower() == headers.ATTEMPT.encode():
            self.attempt = int(value)

    @property
    def router(self) -> str:
        """What the router calls itself that asked for this."""
        return self.head.get(headers.ROUTER, "")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self.answer())

    def chunk(self, data: bytes) -> None:
        if data and not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def begin_stream(self) -> None:
        """The head of an answer that streams."""
        self.transport.write(HEAD_STREAM % (HEAD_FRAMED if self.server.frames.begin(self) else b""))

    def say(self, data: bytes) -> None:
        """A part of a stream."""
        if data and not self.server.frames.say(self, data):
            self.chunk(data)

    def end_stream(self) -> None:
        self.server.frames.end(self)
        self.transport.write(b"0\r\n\r\n")

    def json(self, value: Any, status: int = 200, more: str = "") -> None:
        """`more`: whole lines of the head."""
        body = orjson.dumps(value)
        self.transport.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
            % (status, more.encode(), len(body), body)
        )

    def answer_wrong(self, status: int, message: str, body: dict[str, Any]) -> None:
        """With 200, and an error in it."""
        error = {"object": "error", "message": message, "type": "InternalServerError",
                 "code": status}  # fmt: skip
        if not body.get("stream"):
            self.json({"error": error} if self.path == "/generate" else error)
            return
        self.begin_stream()
        self.say(b"data: " + orjson.dumps({"error": error}) + b"\n\n")
        self.say(b"data: [DONE]\n\n")
        self.end_stream()

    def answer_nothing(self, body: dict[str, Any]) -> None:
        """With 200, as of a request that was dropped before its first token."""
        stream = STREAMS[self.path](body, str(body.get("rid")), 0)
        if not body.get("stream"):
            self.json(stream.dropped())
            return
        self.begin_stream()
        self.say(stream.head + stream.last())
        self.say(b"data: [DONE]\n\n")
        self.end_stream()

    async def answer(self) -> None:
        server, path = self.server, self.path
        if not path.startswith(server.args.prefix):
            self.json({"detail": "Not Found"}, 404)
            return
        path = self.path = path.removeprefix(server.args.prefix)
        if path == EVENTS:
            await self.events()
        elif path.startswith(STEP_FRAMES):
            self.step_frames()
        elif path in ("/health", "/health_generate"):
            self.json({})
        elif path == "/abort_request":
            rid = orjson.loads(bytes(self.body))["rid"]
            server.aborted.append(rid)
            for key, task in list(server.running.items()):
                if not key.startswith(rid):
                    continue
                if server.args.resume and server.role != "prefill":
                    server.dropped.add(key)
                else:
                    task.cancel()
            self.json({})
        elif path == MOVE:
            self.json({}, server.orders.take(bytes(self.body), server.taken))
        elif path == NOTICES:
            status, answer, wait_s = server.board.take(bytes(self.body), time.monotonic())
            later = f"{headers.RETRY_AFTER_MS}: {round(wait_s * 1e3)}\r\n" if wait_s else ""
            self.json(orjson.Fragment(answer), status, later)
        elif path == PLACEMENT:
            self.place(bytes(self.body))
        elif path == "/stats":
            self.json(
                {
                    "served": server.served,
                    "posts": server.faults.posts,
                    "running": len(server.running),
                    "framed": server.frames.framed,
                    "sent_away": server.frames.sent_away,
                    "moves_ended": server.orders.ends,
                    "ids_told": sum(server.orders.told.values()),
                    "peak": server.peak,
                    "aborted": server.aborted,
                    "bodies": server.bodies[-200:],
                    "heads": server.heads[-200:],
                    "pid": os.getpid(),
                }
            )
        elif path in (
            "/v1/models",
            "/get_model_info",
            "/model_info",
            "/get_server_info",
            "/server_info",
        ):
            self.json(server.about(path))
        elif path == "/standin/mode":
            known = server.faults.ask(self.body.decode(), server, self)
            self.json({}, 200 if known else 400)
        elif path == "/v1/loads":
            self.json({"loads": []})
        elif path in WHOLE:
            self.json({"path": path, "body": orjson.loads(bytes(self.body))})
        else:
            await self.generate()

    def place(self, state: bytes) -> None:
        """Say where the experts lie, after having put them there where the request says where."""
        args = self.server.args
        if not args.placement:
            self.json({"detail": "Not Found"}, 404)
            return
        if state:
            args.placement = state.decode()
            self.server.publish(events.Placed(orjson.loads(state)["serial"]))
        self.json(orjson.loads(args.placement))

    def step_frames(self) -> None:
        """A relay's connection, or its order."""
        frames = self.server.frames
        if not self.server.args.frames:
            self.json({"detail": "Not Found"}, 404)
        elif self.body:
            frames.send_away(self.body.decode())
            self.json({})
        else:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
            frames.open(self.path.partition("?relay=")[2], self)

    async def events(self) -> None:
        if self.server.args.no_events:
            self.json({"detail": "Not Found"}, 404)
            return
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        self.chunk(self.server.hello())
        for load in self.server.loads():
            self.chunk(events.encode(load))
        self.server.subscribers.add(self)
        self.server.tell_routers()
        while True:
            await asyncio.sleep(0.25 if self.server.args.steps else 0.5)
            if time.monotonic() - self.server.said_at >= self.server.quiet_s:
                self.chunk(events.encode(events.Ping()))
            self.server.publish_steps()

    async def generate(self) -> None:
        server = self.server
        raw = bytes(self.body)
        body = sane(raw) if server.args.patient else orjson.loads(raw)
        server.faults.posts += 1
        if server.args.record:
            server.bodies.append(body)
            server.heads.append(self.head)
        if "fail_status" in body and body.get("fail_role", server.role) == server.role:
            message = body.get("fail_message", "as asked")
            self.json({"object": "error", "message": message}, body["fail_status"])
            return
        if body.get("poison") == server.role:
            if body.get("announced"):
                server.publish(events.Down("one of its processes died"))
            later = 0.02 if body.get("announced") else 0.0
            asyncio.get_running_loop().call_later(later, os.kill, os.getpid(), signal.SIGKILL)
            return
        rid = str(body.get("rid"))
        if "lost" in body and server.role == "decode" and not self.attempt:
            await self.lose(told=body["lost"] == "told")
            return
        task = asyncio.current_task()
        assert task is not None
        server.running[rid], server.taken[rid] = task, body
        server.publish_load()
        try:
            if await server.faults.spoil(self, server, body):
                pass
            elif server.role == "prefill":
                await self.prefill(body, rid)
            else:
                await self.decode(body, rid)
            server.served += 1
        except asyncio.CancelledError:
            if not self.transport.is_closing():
                self.transport.close()
            raise
        finally:
            server.running.pop(rid, None)
            server.dropped.discard(rid)
            server.taken.pop(rid, None)
            server.orders.ended(rid)
            server.publish_load()

    async def lose(self, told: bool) -> None:
        while not self.transport.is_closing():
            if told:
                self.server.publish_load()
            await asyncio.sleep(0.05)

    async def prefill(self, body: dict[str, Any], rid: str) -> None:
        server = self.server
        if server.args.prefill_ms:
            await asyncio.sleep((server.args.prefill_ms - server.args.near_ms) / 1e3)
        if server.args.near_ms:
            server.publish(prefilled(server, body, rid, left=NEAR_TOKENS))
            await asyncio.sleep(server.args.near_ms / 1e3)
        server.stand_at(body, 0)
        await server.faults.stand()
        if body.get("crash_role") == "prefill" and not self.attempt:
            os.kill(os.getpid(), signal.SIGKILL)
        if body["bootstrap_host"] == prefill_only.HOST:
            await self.decode(body, rid)
            return
        prompt = prompt_of(body)
        stream = None
        if body.get("stream"):
            stream = FirstTokens(self, body, rid)
            if not stream.begin():
                return
        if server.args.done_ms:
            await asyncio.sleep(server.args.done_ms / 1e3)
        server.publish(prefilled(server, body, rid))
        if body.get("lose_kv"):
            await asyncio.sleep(0.05)
            if stream is not None:
                stream.fail(500, "its KV did not get across")
            else:
                self.json({"object": "error", "message": "its KV did not get across"}, 500)
            return
        if server.args.transfer_ms:
            await asyncio.sleep(server.args.transfer_ms / 1e3)
        took = args_ms / 1e3 if (args_ms := server.args.transfer_ms) else 1e-4
        server.publish(
            events.KvTransfer(seconds=took, bytes=1024, tokens=len(str(prompt)), rid=rid)
        )
        if stream is not None:
            stream.end()
            return
        meta = {"input_token_logprobs": [[-0.5, 1, None]], "prompt_tokens": 1}
        logprobs = {
            "tokens": ["p", "x"],
            "token_logprobs": [-0.5, -1.0],
            "top_logprobs": [None, None],
            "text_offset": [-1, -1],
        }
        self.json(
            {
                "text": "",
                "meta_info": meta,
                "usage": {"prompt_tokens": 1},
                "choices": [{"logprobs": logprobs}],
            }
        )

    async def decode(self, body: dict[str, Any], rid: str) -> None:
        args = self.server.args
        if args.kv_ms:
            await asyncio.sleep(args.kv_ms / 1e3)
        params = body.get("sampling_params") or {}
        wanted = body.get("max_completion_tokens") or body.get("max_tokens")
        count = wanted or params.get("max_new_tokens") or args.tokens
        seed = seed_of(prompt_of(body))
        stream = STREAMS[self.path](body, rid, seed)
        stops_at = self.server.faults.stops_at(count)
        if not body.get("stream"):
            if stops_at is not None:
                await self.server.faults.silence()
            await asyncio.sleep(args.token_ms * count / 1e3)
            self.server.stepped += count
            self.server.batched += count
            self.crash(body, rid, count)
            self.json(stream.whole(count))
            return
        ids, late = resumed_ids(body), late_of(body)
        if late and not await self.taken_over(body):
            return
        self.begin_stream()
        if stream.head:
            self.say(stream.head)
        done = len(ids)
        known = ids[: done - late]
        assert known == [token_id(seed, i) for i in range(len(known))], "resumed with wrong ids"
        if late:
            done = len(known) + ahead_of(body) + 1  # the one behind them came along
        at = asyncio.get_running_loop().time()
        first = 0
        while first < count:
            upto = max(first + 1, done)
            hurry = rid in self.server.dropped and body.get("on_abort") == "finish"
            if hurry:
                pass
            elif args.step_ms and first >= done:
                await self.server.next_step()
            elif args.token_ms and first >= done:
                at += args.token_ms / 1e3
                delay = at - asyncio.get_running_loop().time()
                if delay > 0:
                    await asyncio.sleep(delay)
            self.crash(body, rid, first)
            self.server.stand_at(body, first)
            await self.server.faults.stand()
            if first == stops_at:
                await self.server.faults.silence()
            if args.steps:
                self.server.stepped += 1
                self.server.batched += len(self.server.running)
            new = b""
            if self.ids:
                joined = " ".join(str(token_id(seed, i)) for i in range(first, upto))
                new = b": %b\n" % joined.encode()
            if rid in self.server.dropped and self.drop(body, new, stream, first, upto):
                return
            self.say(self.server.orders.through(rid, new + stream.delta(first, upto)))
            self.server.orders.generated(rid, upto)
            if not self.can_write.is_set():
                await self.can_write.wait()
            elif not args.token_ms and not args.step_ms and first % 64 == 0:
                await asyncio.sleep(0)
            first = upto
        self.say(await self.server.orders.free(rid, self.server.dropped))
        for tail in stream.tail(count):
            self.say(tail)
        self.say(b"data: [DONE]\n\n")
        self.end_stream()

    async def taken_over(self, body: dict[str, Any]) -> bool:
        """Wait for the KV of a request that another one sends. False: it has not come."""
        # Of a source that dies before its stop no KV comes.
        how = "hang" if body.get("on_move") == "die" else body.get("on_take")
        if how == "refuse":
            self.json({"object": "error", "message": "as asked"}, 500)
            return False
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep((self.server.args.token_ms or 1) / 1e3 * (ahead_of(body) + 1) + LATE_S)
        if how == "die_late":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            await asyncio.sleep(3600)
        if how == "error":
            self.begin_stream()
            error = {"message": "its KV did not come", "type": "InternalServerError", "code": 500}
            self.say(b"data: " + orjson.dumps({"error": error}) + b"\n\n")
            self.end_stream()
            return False
        return True

    def drop(self, body: dict[str, Any], ids: bytes, stream: Any, first: int, upto: int) -> bool:
        """End a stream that was aborted, as SGLang does: with one more output, whose text holds
        what would have been held back. `on_abort` in its body: `die`, `deaf` (it goes on), `finish`
        (all that is left comes at once); these return False."""
        how = body.get("on_abort")
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if how in ("deaf", "finish"):
            return False
        self.say(ids + stream.aborted(first, upto))
        self.say(b"data: [DONE]\n\n")
        self.end_stream()
        return True

    def crash(self, body: dict[str, Any], rid: str, tokens: int) -> None:
        """SIGKILL at the asked token, on a first attempt only."""
        limit = body.get("crash_after")
        if limit is not None and tokens >= limit and self.attempt != 1:
            os.kill(os.getpid(), signal.SIGKILL)


class FirstTokens:
    """A prefill's stream: the first token when it is there, and again at the end."""

    def __init__(self, protocol: Protocol, body: dict[str, Any], rid: str) -> None:
        self.protocol = protocol
        self.seed = seed_of(prompt_of(body))
        self.stream = STREAMS[protocol.path](body, rid, self.seed)
        self.tells = protocol.server.args.first_token and not body.get("hold_first")
        self.refuses = body.get("refuse_first")

    def begin(self) -> bool:
        """False when that was all."""
        self.protocol.begin_stream()
        if self.refuses:
            self.fail(400 if self.refuses is True else self.refuses, "as asked")
        elif self.tells:
            self._token(b": %d\n" % token_id(self.seed, 0) if self.protocol.ids else b"")
        return not self.refuses

    def _token(self, comment: bytes) -> None:
        first = self.stream.head or self.stream.delta(0, 1)
        self.protocol.say(comment + first)
        if self.stream.head:
            self.protocol.say(self.stream.delta(0, 1))

    def end(self) -> None:
        comment = b": last\n" if self.protocol.ids else b""
        if not self.tells:
            self._token(comment)
            comment = b""
        for tail in self.stream.tail(1):
            self.protocol.say(comment + tail)
            comment = b""
        self._close()

    def fail(self, status: int, message: str) -> None:
        error = {"object": "error", "message": message, "type": "BadRequestError", "code": status}
        self.protocol.say(b"data: " + orjson.dumps({"error": error}) + b"\n\n")
        self._close()

    def _close(self) -> None:
        self.protocol.say(b"data: [DONE]\n\n")
        self.protocol.end_stream()


async def serve(args: argparse.Namespace) -> None:
    server = Server(args)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: Protocol(server), args.host, args.port, backlog=1024
    )
    print(listener.sockets[0].getsockname()[1], flush=True)
    tasks = [loop.create_task(server.beat())] if args.heartbeat else []
    await asyncio.gather(listener.serve_forever(), *tasks)


def prefilled(server: Any, body: dict[str, Any], rid: str, left: int = 0) -> events.PrefillDone:
    """What a prefill worker says of a prompt that is through, or has tokens `left`."""
    return events.PrefillDone(
        rid,
        prompt_tokens=_tokens(prompt_of(body)) + len(resumed_ids(body)),
        signature=signature_event(body, len(server.layers) * server.args.experts),
        left=left,
    )


def _tokens(prompt: object) -> int:
    """Ids are counted, of anything else its characters."""
    ids = isinstance(prompt, list) and all(isinstance(each, int) for each in prompt)
    return len(prompt) if isinstance(prompt, list) and ids else len(str(prompt))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=("prefill", "decode", "null"), required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--prefix", default="", help="behind which all its paths are")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--token-ms", type=float, default=0.0)
    parser.add_argument(
        "--step-ms", type=float, default=0.0, help="all streams get a token at once, as in a batch"
    )
    parser.add_argument("--prefill-ms", type=float, default=0.0)
    parser.add_argument(
        "--near-ms", type=float, default=0.0,
        help="so long before its end a prompt's decode worker is asked for",
    )  # fmt: skip
    parser.add_argument(
        "--kv-ms", type=float, default=0.0, help="a decode waits so long for its prefill's KV"
    )
    parser.add_argument("--transfer-ms", type=float, default=0.0)
    parser.add_argument("--done-ms", type=float, default=0.0)
    parser.add_argument("--first-token", action="store_true", help="prefills tell first tokens")
    parser.add_argument("--prefill-only", action="store_true", help="prefills answer one token")
    parser.add_argument("--resume", action="store_true", help="go on with streams; abort softly")
    parser.add_argument("--frames", action="store_true", help="streams go into relays' frames")
    parser.add_argument("--moves", action="store_true", help="send requests to one another")
    parser.add_argument("--stays", default="", help="why nothing can move, in hello")
    parser.add_argument("--no-events", action="store_true")
    parser.add_argument("--sglang", default="", help="its release, in hello")
    parser.add_argument("--contract", type=int, default=VERSION)
    parser.add_argument("--fingerprint", default="sha256:1", help="of the model, in hello")
    parser.add_argument("--page-size", type=int, default=1, help="of its KV, in hello")
    parser.add_argument("--signature-layers", default="", help="of the model, as in 0,3,5")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--slots", type=int, default=64, help="max_running_requests in hello")
    parser.add_argument("--dp-size", type=int, default=1, help="ranks that say their load")
    parser.add_argument("--dp-attention", action="store_true", help="say so in hello")
    parser.add_argument("--placement", metavar="JSON", help="where its experts lie")
    parser.add_argument("--mute", action="store_true", help="never publish the load")
    parser.add_argument("--steps", action="store_true", help="decodes publish their steps")
    parser.add_argument("--heartbeat", type=float, nargs="?", const=0.1, help="say that it goes on")
    parser.add_argument("--mode", choices=MODES, default="well", help="how it is sick")
    parser.add_argument(
        "--folder", default="/srv/secret-folder/weights/standin", help="of its model, as it says"
    )
    parser.add_argument("--patient", action="store_true", help="serve any body somehow")
    parser.add_argument("--record", action="store_true", help="keep request bodies for /stats")
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive a test
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
