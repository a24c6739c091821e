"""The part of a router that has clients: it takes requests, and runs them on workers."""

from __future__ import annotations

import asyncio
import logging
import traceback
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from toolkit.contract.headers import CAPTURE, CLASS, LABEL, REQUEST_ID, ROUTING_KEY, TO_WORKER
from toolkit.router import asks, bodies, budget, migrate, request_id
from toolkit.router.admission import Admission, AdmissionEntry
from toolkit.router.attempt.upstream_calls import Answer
from toolkit.router.budget import Budget, Charge
from toolkit.router.client import ClientStream
from toolkit.router.dispatch import Dispatcher
from toolkit.router.entry import closing
from toolkit.router.errors import ApiError
from toolkit.router.grammars import closing as stream_end
from toolkit.router.guard import CALLER
from toolkit.router.known_requests import KnownRequest, KnownRequests
from toolkit.router.merge import SubStream, completion_tokens, merge_answers, stream_usage
from toolkit.router.neighbours import neighbours
from toolkit.router.parsing import Parser
from toolkit.router.quiet import where
from toolkit.router.relay import Relay
from toolkit.router.request import PATHS, WHOLE, Job
from toolkit.router.silence import give_up_silent
from toolkit.router.validate import models

if TYPE_CHECKING:
    from toolkit.router.admission import OtherProcesses
    from toolkit.router.configured_workers import ConfiguredWorkers
    from toolkit.router.draining import Draining
    from toolkit.router.metrics import Metrics
    from toolkit.router.parse_server import Started
    from toolkit.router.recording import RecordingEntry as Recorded
    from toolkit.router.recording import RecordsRequests
    from toolkit.settings.router.config import RouterConfig

log = logging.getLogger("toolkit.router")

DONE = b"data: [DONE]\n\n"
ABORTED = "aborted by /abort_request"


class DataPlane:
    """Serves clients; `answer` tells the control plane of it."""

    def __init__(
        self,
        config: RouterConfig,
        known_workers: ConfiguredWorkers,
        dispatcher: Dispatcher,
        metrics: Metrics,
        draining: Draining,
        recording: RecordsRequests | None,
        parsers: Started | None = None,
        others: OtherProcesses | None = None,
        memory: Budget | None = None,
    ) -> None:
        """`others`, `memory`: where other processes serve requests as well."""
        self.config = config
        self.known_workers = known_workers
        self.dispatcher = dispatcher
        self.metrics = metrics
        self.admission = Admission(config.max_inflight, config.max_queue, draining, others)
        self.budget = memory or Budget(config.max_body_total_mib * budget.MIB)
        self.parser = Parser(config.parse_cpu_ms / 1000, parsers)
        self.recording = recording
        self.known_requests = KnownRequests()
        models.prepare(config.allow)
        self.jobs: dict[tuple[str, str], set[asyncio.Task[Any]]] = {}
        """By the name of the client's key and its own rid."""
        self._silence: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch requests for silence."""
        answering = [each for each in self.known_workers.workers if each.config.role != "prefill"]
        ranks = [rank.silence for worker in answering for rank in worker.ranks]
        self._silence = asyncio.create_task(give_up_silent(ranks, self.config))

    async def stop(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            await asyncio.gather(self._silence, return_exceptions=True)
        await self.parser.stop()

    async def drain(self) -> None:
        """Refuse new requests for good and wait, bounded, for those that run."""
        self.admission.draining.end()
        deadline = monotonic() + self.config.drain_timeout_s
        while self.admission.busy and monotonic() < deadline:
            await asyncio.sleep(0.05)

    async def answer(self, ask: asks.Ask) -> Any:
        """See `toolkit.router.asks`."""
        moves = self.dispatcher.moves
        match ask:
            case asks.AskFigures():
                return self._figures(ask.lengths)
            case asks.ClearFigures():
                self.metrics.clear_rings()
                return None
            case asks.FindRequests():
                found = self.known_requests.find(ask.name, ask.caller)
                return [known.describe(ask.places) for known in found]
            case asks.AbortRequests():
                return self._abort(ask)
            case asks.FindMovable():
                return migrate.movable(moves, self.known_workers, ask)
            case asks.MoveRequests():
                return await migrate.move(moves, self.known_workers, ask)

    def _abort(self, ask: asks.AbortRequests) -> int:
        count = 0
        for (owner, name), tasks in list(self.jobs.items()):
            if ask.caller in (None, owner) and ask.rid in (None, name):
                for task in list(tasks):
                    task.cancel(ABORTED)
                    count += 1
        return count

    def _figures(self, lengths: bool) -> asks.RequestFigures:
        metrics, moves = self.metrics, self.dispatcher.moves
        running = moves.all() if lengths else []
        return asks.RequestFigures(
            running=self.admission.running,
            queued=self.admission.queued,
            held_bytes=self.budget.held,
            resumed=metrics.resumed,
            retried=metrics.retried,
            moves=moves.figures(),
            seconds=metrics.seconds(),
            lengths=[
                (live.length - live.generated, live.length, live.rank.name)
                for live in running
                if live.rank is not None
            ],
        )

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Everything that runs on workers."""
        endpoint = PATHS[request.path]
        client = ClientStream(request)
        known = self.known_requests.begin(request[request_id.KEY], endpoint, request[CALLER].name)
        status = 500
        try:
            response = await self._serve(request, client, known)
            status = response.status
            return response
        except ApiError as error:
            status = error.status
            return closing(await self._refuse(error, endpoint, client), request)
        except asyncio.CancelledError as cancelled:
            status = 499
            if cancelled.args == (ABORTED,):
                return await self._refuse(_aborted(), endpoint, client)
            self.metrics.disconnects.inc()
            raise
        except ConnectionError:  # the client went away while we wrote to it
            status = 499
            return web.Response(status=499)
        except web.HTTPException as error:
            status = error.status
            raise
        except Exception as error:
            # The text of an unexpected exception may hold a prompt: log where, not what.
            name = known.request_id
            log.error("request %s: unexpected error in %s: %s", name, endpoint, where(error))
            if self.config.debug:
                log.error("".join(traceback.format_tb(error.__traceback__)))
            internal = ApiError(500, "Internal error of the router.", "InternalServerError")
            return await self._refuse(internal, endpoint, client)
        finally:
            client.close()
            self.known_requests.end(known, status)
            self.metrics.requests.labels(endpoint, str(status)).inc()

    async def _refuse(
        self, error: ApiError, endpoint: str, client: ClientStream
    ) -> web.StreamResponse:
        if client.started or error.from_stream:
            return await client.finish(error.event(endpoint) + stream_end(endpoint))
        return web.Response(
            status=error.status,
            body=error.body(endpoint),
            content_type="application/json",
            headers=error.headers(),
        )

    async def _serve(
        self, request: web.Request, client: ClientStream, known: KnownRequest
    ) -> web.StreamResponse:
        if self.config.disaggregated and PATHS[request.path] in WHOLE:
            raise _apart(request.path)
        limit = self.config.max_body_mib * budget.MIB
        bodies.refuse(request, self.config, limit)
        self.admission.check()  # before anything of the body is read
        refusal = self.dispatcher.channel.refusal
        if refusal is not None:
            raise refusal
        with self.budget.open() as charge:
            chunks = await bodies.read(request, self.config, charge, limit)
            return await self._parsed(request, client, known, chunks, charge)

    async def _parsed(
        self,
        request: web.Request,
        client: ClientStream,
        known: KnownRequest,
        chunks: list[bytes],
        charge: Charge,
    ) -> web.StreamResponse:
        arrived, caller = monotonic(), request[CALLER].name
        job = await self.parser.parse(
            request.path,
            chunks,
            charge,
            client=caller or neighbours(request.remote or ""),
            wanted=self.dispatcher.switches.wanted,
            headers=_forwarded(request),
            request_id=known.request_id,
            limit=min(self.config.max_parts, self.admission.widest),
            vocabulary=self.known_workers.vocabulary(),
            release=self.known_workers.release(),
            allow=self.config.allow,
            capture=request.headers.get(CAPTURE) == "1",
            label=request.headers.get(LABEL),
            routing_key=request.headers.get(ROUTING_KEY),
            now=arrived,
            classes=self.config.classes,
            said_class=request.headers.get(CLASS),
            key=caller,
        )
        known.parsed(job)
        view = job.sub_requests[0].view
        self.metrics.classed(view.request_class)
        with self.admission.enter(len(job.sub_requests), view.best_effort) as entry:
            return await self._run_job(caller, job, client, arrived, entry, charge)

    async def _run_job(
        self,
        caller: str,
        job: Job,
        client: ClientStream,
        arrived: float,
        entry: AdmissionEntry,
        charge: Charge,
    ) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        mine = (caller, job.rid)
        self.jobs.setdefault(mine, set()).add(task)
        try:
            async with asyncio.timeout(self.config.request_timeout_s):
                if job.stream:
                    return await self._stream(job, client, arrived, entry, charge)
                return await self._collect(job, arrived, entry)
        except TimeoutError as error:
            limit = self.config.request_timeout_s
            raise ApiError(504, f"The request took longer than {limit:g} s.") from error
        finally:
            tasks = self.jobs[mine]
            tasks.discard(task)
            if not tasks:
                del self.jobs[mine]

    async def _stream(
        self, job: Job, client: ClientStream, arrived: float, entry: AdmissionEntry, charge: Charge
    ) -> web.StreamResponse:
        incremental = self.config.incremental_streaming
        if not job.merged:
            relay = Relay(job.sub_requests[0], client, incremental, charge)
            await self._run_stream(job, 0, relay, client, arrived, entry)
            return await client.finish()
        parts = [SubStream(job, sub_request.index, client) for sub_request in job.sub_requests]
        relays = [
            Relay(sub_request, part, incremental, charge)
            for sub_request, part in zip(job.sub_requests, parts, strict=True)
        ]
        await _all(
            self._run_stream(job, index, relay, client, arrived, entry)
            for index, relay in enumerate(relays)
        )
        return await client.finish(stream_usage(job, parts) + DONE)

    async def _run_stream(
        self,
        job: Job,
        index: int,
        relay: Relay,
        client: ClientStream,
        arrived: float,
        places: AdmissionEntry,
    ) -> None:
        entry = self._record(job, index, arrived)
        try:
            async with places.slot():
                await self.dispatcher.run(job.sub_requests[index], relay, client, arrived)
        except ApiError as error:
            raise (error.as_generate_event() if job.endpoint == "generate" else error) from error
        finally:
            self.metrics.tokens.inc(relay.tokens)
            if entry is not None and self.recording is not None:
                counted = job.sub_requests[index].prompt_tokens
                self.recording.end(entry, relay.tokens, counted)

    async def _collect(self, job: Job, arrived: float, entry: AdmissionEntry) -> web.Response:
        if not job.merged:
            answer = await self._run(job, 0, arrived, entry)
            return web.Response(
                body=answer.body, content_type="application/json", headers=answer.headers
            )
        answers = await _all(
            self._run(job, index, arrived, entry) for index in range(len(job.sub_requests))
        )
        merged = merge_answers(job, [orjson.loads(answer.body) for answer in answers])
        return web.Response(body=orjson.dumps(merged), content_type="application/json")

    async def _run(self, job: Job, index: int, arrived: float, places: AdmissionEntry) -> Answer:
        entry, tokens = self._record(job, index, arrived), 0
        try:
            async with places.slot():
                answer = await self.dispatcher.run(job.sub_requests[index], None, None, arrived)
            assert answer is not None
            if entry is not None:
                tokens = completion_tokens(answer.body)
            return answer
        finally:
            if entry is not None and self.recording is not None:
                self.recording.end(entry, tokens, job.sub_requests[index].prompt_tokens)

    def _record(self, job: Job, index: int, arrived: float) -> Recorded | None:
        if self.recording is None:
            return None
        return self.recording.begin(job.sub_requests[index], arrived)


async def _all(runs: Any) -> list[Any]:
    """All results in order; the first failure ends the others and is raised as it is."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _apart(path: str) -> ApiError:
    return ApiError(
        404,
        f"{path} is not served here: these workers prefill and decode apart. A deployment of "
        "`mode: plain` whose workers have a model for it (SGLang's is-embedding, say) serves it.",
    )


def _aborted() -> ApiError:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()  # the answer is still to be written
    return ApiError(499, "The request was aborted.", "RequestAborted")


def _forwarded(request: web.Request) -> str:
    """What workers get of a client's headers, and its request id."""
    headers = request.headers
    passed = {name: headers[name] for name in TO_WORKER if name in headers}
    passed[REQUEST_ID] = request[request_id.KEY]
    return "".join(f"{name}: {value}\r\n" for name, value in passed.items())
