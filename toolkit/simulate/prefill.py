"""A prefill worker: a waiting queue, chunked forward passes, and KV that waits to be fetched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from toolkit.policies.base import Load, WorkerView
from toolkit.policies.sjf import Queued, ShortestFirst
from toolkit.simulate.cores import Cores
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.events import Event, Events
from toolkit.simulate.prefix_cache import PrefixCache
from toolkit.simulate.request import Request


@dataclass(eq=False)
class PrefillWorker:
    """Takes prompts in order of arrival, or `shortest` first, in passes of at most `chunk` tokens.

    A prompt's KV takes its place in the pool of `kv_tokens` from its first pass until its decode
    rank has it; what is left of the pool caches prefixes. A prompt that has no room waits, and
    those behind it with it. As SGLang's `PrefillAdder`: the prompt that is half done comes first,
    then whole ones as long as the chunk has room, of the last one a part.
    """

    events: Events
    cost: CostModel
    name: str
    on_done: Callable[[Request], None]
    chunk: int = 8192
    kv_tokens: int = 1 << 40
    shortest: ShortestFirst | None = None
    waiting: list[Request] = field(default_factory=list)
    half_done: Request | None = None
    computed_tokens: int = 0
    hit_tokens: int = 0
    held_tokens: int = 0
    """Of prompts that are computed, or wait for their decode rank."""
    cores: Cores | None = None
    weight: float = 1.0
    """What it shares with others, by weight."""
    credit: int = 0
    """More requests that the router may send here before their decode is chosen."""

    def __post_init__(self) -> None:
        self.cache = PrefixCache()
        self._passing: list[tuple[Request, int]] = []
        self._since: dict[Request, int] = {}
        self._starting = False
        self._speed = 1.0
        self._left_s = 0.0
        self._paced = 0.0
        self._ending: Event | None = None

    def set_speed(self, speed: float) -> None:
        """From now on; 1 is that of the cost model."""
        self._left_s -= (self.events.now - self._paced) * self._speed
        self._paced, self._speed = self.events.now, speed
        if self._ending is not None:
            self._ending.cancel()
            self._ending = self.events.after(max(0.0, self._left_s) / speed, self._done)

    def take(self, request: Request) -> None:
        """A request arrives."""
        self.waiting.append(request)
        self._since[request] = self.computed_tokens
        self._wake()

    def fetched(self, request: Request) -> None:
        """Its decode rank has its KV."""
        self.held_tokens -= request.prompt
        if request.blocks:
            self.cache.add(request.blocks[: request.prompt // request.block], request.block)
        self._wake()

    def view(self, usable: bool) -> WorkerView:
        left = sum(each.prompt - each.computed for each in self.waiting)
        load = Load(
            running=len(self._passing),
            waiting=len(self.waiting),
            used_tokens=self.held_tokens,
            total_tokens=self.kv_tokens,
            waiting_tokens=left,
        )
        count = len(self.waiting) + len(self._passing)
        return WorkerView(self.name, healthy=usable, inflight=count, load=load)

    def _wake(self) -> None:
        """Look for work, after all that happens at this moment."""
        if not self._passing and not self._starting:
            self._starting = True
            self.events.at(self.events.now, self._start)

    def _start(self) -> None:
        self._starting = False
        if self._passing:
            return
        parts = self._next_pass() if self.waiting or self.half_done else []
        if not parts:
            if self.cores is not None:
                self.cores.idle(self)
            return
        self._passing = [(request, new) for request, new, _ in parts]
        seconds = self.cost.prefill_s([(new, before) for _, new, before in parts])
        self._left_s, self._paced = seconds, self.events.now
        self._ending = self.events.after(seconds / self._speed, self._done)
        if self.cores is not None:
            self.cores.busy(self, self.weight, 1.0)

    def _next_pass(self) -> list[tuple[Request, int, int]]:
        """Who is in the next forward pass: the request, its new tokens, tokens before them."""
        left = self.chunk
        parts: list[tuple[Request, int, int]] = []
        if self.half_done is not None:
            left -= self._add(parts, self.half_done, left)
        if left and self.shortest is not None:
            self._sort(self.shortest)
        taken = 0
        for request in self.waiting:
            if left <= 0 or not self._begin(request):
                break
            taken += 1
            left -= self._add(parts, request, left)
        del self.waiting[:taken]
        return parts

    def _add(self, parts: list[tuple[Request, int, int]], request: Request, left: int) -> int:
        before = request.cached + request.computed
        new = min(request.prompt - before, left)
        parts.append((request, new, before))
        self.half_done = request if before + new < request.prompt else None
        return new

    def _begin(self, request: Request) -> bool:
        """Its prompt gets its place in the pool, if there is one."""
        if self.held_tokens and self.held_tokens + request.prompt > self.kv_tokens:
            return False
        # As SGLang: one token at least is computed, for there is no logit without it.
        request.cached = min(self.cache.match(request.blocks), request.prompt - 1)
        request.prefill_began = self.events.now
        self.hit_tokens += request.cached
        self.held_tokens += request.prompt
        self.cache.shrink(max(0, self.kv_tokens - self.held_tokens))
        self._since.pop(request)
        return True

    def _sort(self, shortest: ShortestFirst) -> None:
        queued = [
            Queued(f"{each.number:012d}", each.prompt - self._seen(each), self._since[each])
            for each in self.waiting
        ]
        self.waiting = [self.waiting[i] for i in shortest.order(queued, self.computed_tokens)]

    def _seen(self, request: Request) -> int:
        return min(self.cache.match(request.blocks), request.prompt - 1)

    def _done(self) -> None:
        self._ending = None
        passed, self._passing = self._passing, []
        for request, new in passed:
            request.computed += new
            self.computed_tokens += new
            if request is not self.half_done:
                request.prefilled = self.events.now
                self.on_done(request)
        self._wake()
