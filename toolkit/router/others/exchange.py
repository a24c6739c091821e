"""This router's end of the notices that routers send each other through workers."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from toolkit.contract.headers import RETRY_AFTER_MS
from toolkit.contract.notices import ANSWER, NOTICE_MAX, PATCH, Notice, Posted
from toolkit.contract.paths import NOTICES
from toolkit.decide.notices import NoticeAllowance, SeenNotices, ways
from toolkit.router.errors import UpstreamError
from toolkit.router.keys import proof_of
from toolkit.router.own_name import own_name
from toolkit.router.quiet import where
from toolkit.router.time_limit import TimeLimit
from toolkit.router.worker_listener import WorkerListener

if TYPE_CHECKING:
    from toolkit.router.keys import Caller
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.metrics import Metrics
    from toolkit.router.worker import Worker

log = logging.getLogger("toolkit.router")
A = TypeVar("A")

ASK_S = 1.0
"""So long others have to answer."""
POST_S = 2.0
"""A worker that does not take a notice by then hangs."""
UNDER_WAY_MAX = 256
"""Notices that are posted, or carried out, at a time; more are dropped."""
UNKNOWN = "unknown"


class TakesNotices(Protocol):
    """Whom notices of some kind are for."""

    async def take_notice(self, notice: Notice) -> Any:
        """What to answer, as JSON has it; None: nothing. msgspec.DecodeError: a body that the kind
        does not have."""
        ...


class _Asked:
    """Who is still to answer, and what the others said."""

    def __init__(self, awaited: Iterable[str]) -> None:
        self.awaited = set(awaited)
        self.answers: dict[str, str] = {}
        self.over = asyncio.Event()

    def answered(self, sender: str, body: str) -> None:
        if sender in self.awaited:
            self.awaited.discard(sender)
            self.answers[sender] = body
            self._look()

    def unreached(self, names: Iterable[str]) -> None:
        """Nothing will come of these."""
        if self.awaited and self.awaited <= set(names):
            self.over.set()

    def _look(self) -> None:
        if not self.awaited:
            self.over.set()


class NoticeExchange(WorkerListener):
    """Posts notices, and gives those that come to who takes their kind. A notice goes through two
    workers, and counts once."""

    def __init__(self, known_workers: KnownWorkers, metrics: Metrics) -> None:
        self._workers = known_workers.workers
        self._named = known_workers.named
        self._metrics = metrics
        self._takers: dict[str, TakesNotices] = {}
        self._asked: dict[str, _Asked] = {}
        self._seen = SeenNotices()
        self._allowance = NoticeAllowance()
        self._under_way: set[asyncio.Task[None]] = set()
        known_workers.listen(self)

    def give(self, kinds: Iterable[str], taker: TakesNotices) -> None:
        """Notices of these kinds are for that one from now on."""
        self._takers |= dict.fromkeys(kinds, taker)

    @property
    def others(self) -> frozenset[str]:
        """Names of the other routers, as far as workers tell."""
        return frozenset().union(*(each.other_routers for each in self._workers if each.healthy))

    def tell(
        self, kind: str, body: Any, to: str = "", caller: Caller | None = None, re: str = ""
    ) -> None:
        """Tell it another router, or (`to` empty) all others; nobody waits for that. `caller`: who
        wants it, of whom the notice has a proof; `re`: what it answers."""
        if self.others:
            notice = _notice(kind, body, to, caller, re)
            self._begin(kind, self._post(notice, {to} if to else self.others, None))

    async def ask(
        self,
        kind: str,
        body: Any,
        answer: type[A],
        to: str = "",
        caller: Caller | None = None,
        within_s: float = ASK_S,
    ) -> tuple[dict[str, A], set[str]]:
        """As `tell`; their answers, by name, and those who gave none in time that makes sense."""
        awaited = frozenset({to}) if to else self.others
        if not awaited:
            return {}, set()
        notice = _notice(kind, body, to, caller)
        asked = self._asked[notice.id] = _Asked(awaited)
        try:
            self._begin(kind, self._post(notice, awaited, asked))
            async with TimeLimit(within_s):
                await asked.over.wait()
        except TimeoutError:
            pass
        finally:
            del self._asked[notice.id]
        found, silent = dict[str, A](), asked.awaited
        for router, raw in sorted(asked.answers.items()):
            try:
                found[router] = msgspec.json.decode(raw, type=answer)
            except (msgspec.DecodeError, RecursionError):
                silent.add(router)
        return found, silent

    def routers_changed(self) -> None:
        others = self.others
        for asked in self._asked.values():
            asked.unreached(asked.awaited - others)  # they have gone

    async def stop(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def noticed(self, notice: Notice) -> None:
        now, own = monotonic(), own_name()
        if notice.sender == own or notice.to not in ("", own):
            return
        if not self._seen.first(notice.sender, notice.id, now):
            return
        if self._allowance.take(notice.sender, len(notice.body), now):
            self._count(notice.kind, "dropped")
        elif notice.kind == ANSWER:
            asked = self._asked.get(notice.re)
            if asked is not None:
                asked.answered(notice.sender, notice.body)
        elif notice.kind in self._takers:
            self._begin(notice.kind, self._take(self._takers[notice.kind], notice))
        else:
            self._count(UNKNOWN, "passed_over")

    def _begin(self, kind: str, work: Any) -> None:
        if len(self._under_way) >= UNDER_WAY_MAX:
            work.close()
            self._count(kind, "dropped")
            return
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _take(self, taker: TakesNotices, notice: Notice) -> None:
        try:
            answer = await taker.take_notice(notice)
        except Exception as error:  # whatever it holds: it is another router's
            log.warning("router %s: its notice failed in %s", notice.sender, where(error))
            self._count(notice.kind, "failed")
            return
        self._count(notice.kind, "taken")
        if answer is not None:
            self.tell(ANSWER, answer, notice.sender, re=notice.id)

    async def _post(self, notice: Notice, to: Iterable[str], asked: _Asked | None) -> None:
        raw = msgspec.json.encode(notice)
        if len(raw) > NOTICE_MAX:
            self._count(notice.kind, "dropped")
            return
        heard_at = {
            worker.name: worker.other_routers
            for worker in self._workers
            if worker.healthy and PATCH in worker.hello.patches
        }
        workers = [self._named(name) for name in ways(heard_at, to)]
        told = {
            name
            for posted in await asyncio.gather(*(_posted(worker, raw) for worker in workers))
            for name in posted
        }
        unreached = set(to) - told
        self._count(notice.kind, "unsent" if unreached else "sent")
        if asked is not None:
            asked.unreached(unreached)

    def _count(self, kind: str, outcome: str) -> None:
        known = kind if kind in self._takers or kind == ANSWER else UNKNOWN
        self._metrics.notices.labels(known, outcome).inc()


def _notice(kind: str, body: Any, to: str, caller: Caller | None, re: str = "") -> Notice:
    text = msgspec.json.encode(body).decode()
    notice = Notice(own_name(), secrets.token_hex(8), kind, to, re, text)
    if caller is None:
        return notice
    return msgspec.structs.replace(notice, proof=proof_of(caller, notice.signed))


async def _posted(worker: Worker, raw: bytes) -> tuple[str, ...]:
    """The routers that this worker has told of a notice."""
    deadline = monotonic() + POST_S
    while True:
        call = worker.pool.post(NOTICES, raw)
        try:
            async with TimeLimit(max(0.0, deadline - monotonic())):
                await call.done
        except (TimeoutError, UpstreamError):
            return ()
        finally:
            call.close()
        if call.status == 200:
            try:
                return msgspec.json.decode(call.body, type=Posted).told
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return ()
        wait_ms = call.headers.get(RETRY_AFTER_MS, "")
        if call.status != 429 or not wait_ms.isdecimal() or len(wait_ms) > 5:
            return ()
        until = monotonic() + int(wait_ms) / 1e3
        if until > deadline:
            return ()
        await asyncio.sleep(until - monotonic())
