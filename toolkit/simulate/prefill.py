"""A prefill worker: a waiting queue, chunked forward passes, and KV that waits to be fetched."""

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.policies.base import Load, WorkerView
from toolkit.policies.sjf import ShortestFirst
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.early import EarlyChoices
from toolkit.simulate.events import Event, Events
from toolkit.simulate.fleet import UNBOUNDED
from toolkit.simulate.neighbours import Neighbours
from toolkit.simulate.preemption import Preemption, SlicedPass
from toolkit.simulate.prompt_order import (
    PromptOrder,
    Wanted,
    everybody,
    latency_sensitive,
    stoppable,
)
from toolkit.simulate.prompt_queue import Part, PromptQueue
from toolkit.simulate.request import Request


@dataclass(eq=False)
class PrefillWorker:
    """Takes prompts in order of arrival, or `shortest` first, in passes of at most `chunk` tokens.
    With `preemption` best-effort ones run behind all others, in passes of their own, which may be
    stopped between two slices for latency-sensitive ones.

    A prompt's KV takes its place in the pool of `kv_tokens` from its first pass until its decode
    rank has it; what is left of the pool caches prefixes. A prompt that has no room waits, and
    those behind it with it.
    """

    events: Events
    cost: CostModel
    name: str
    on_done: Callable[[Request], None]
    chunk: int = 8192
    kv_tokens: int = UNBOUNDED
    shortest: ShortestFirst | None = None
    held_tokens: int = 0
    """Of prompts that are computed, or wait for their decode rank."""
    neighbours: Neighbours | None = None
    behind: bool = False
    """Its loop looks at what a pass has made when it has begun, and on a CPU done, the next one."""
    preemption: Preemption | None = None
    early: EarlyChoices | None = None

    def __post_init__(self) -> None:
        self.prompts = PromptQueue(self.chunk, self.shortest)
        self._passing: list[Part] = []
        self._order = PromptOrder()
        self._sliced: SlicedPass | None = None
        """The pass that runs, where it is one of best-effort prompts."""
        self._stopped: SlicedPass | None = None
        self._starting = False
        self._speed = 1.0
        self._left_s = 0.0
        self._paced = 0.0
        self._began = 0.0
        self._ending: Event | None = None
        self._computed: list[Request] = []
        """Of the last pass, that nobody was told of yet."""
        self._agenda: list[Callable[[], None]] = []

    def at_boundary(self, action: Callable[[], None]) -> None:
        """Call it when the pass that runs is over: the loop sends KV between passes."""
        if self._passing:
            self._agenda.append(action)
        else:
            action()

    def set_speed(self, speed: float) -> None:
        """From now on; 1 is that of the cost model."""
        self._left_s -= (self.events.now - self._paced) * self._speed
        self._paced, self._speed = self.events.now, speed
        if self._ending is not None:
            self._ending.cancel()
            self._ending = self.events.after(max(0.0, self._left_s) / speed, self._done)

    def take(self, request: Request) -> None:
        """A request arrives."""
        self.prompts.add(request, self.prompts.computed_tokens)
        self._wake()

    def fetched(self, request: Request) -> None:
        """Its decode rank has its KV."""
        self.held_tokens -= request.prompt
        if request.blocks:
            self.prompts.cache.add(request.blocks[: request.prompt // request.block], request.block)
        self._wake()

    @property
    def stops(self) -> bool:
        """Whether it stops best-effort prompts between layers."""
        return self.preemption is not None and self.preemption.slices > 1

    def view(self, usable: bool, urgent: bool = False) -> WorkerView:
        """As a policy sees it. `urgent`: for a latency-sensitive request, for which best-effort
        ones do not count where they can be stopped."""
        waiting, parts = self.prompts.waiting, self._passing
        if self._stopped is not None:
            parts = [*parts, *self._stopped.parts]
        if urgent and self.stops:
            waiting = [each for each in waiting if not each.best_effort]
            parts = [part for part in parts if not part.request.best_effort]
        left = sum([each.prompt - each.computed for each in waiting])
        running = len(parts)
        load = Load(
            running=running,
            waiting=len(waiting),
            used_tokens=self.held_tokens,
            total_tokens=self.kv_tokens,
            waiting_tokens=left,
        )
        count = len(waiting) + running
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
        if self._stopped is not None:
            self._beside(self._stopped)
            return
        if self.preemption is None:
            parts = self._next(everybody)
        else:
            parts = self._order.next(self.prompts, False, self._next)
        if not parts:
            self._tell()
            if self.neighbours is not None:
                self.neighbours.idle(self)
            return
        self._run(parts)

    def _next(self, wanted: Wanted) -> list[Part]:
        prompts = self.prompts
        return prompts.next_pass(self.chunk, prompts.computed_tokens, self._begin, wanted)

    def _run(self, parts: list[Part]) -> None:
        self._passing, self._began = parts, self.events.now
        seconds = self.cost.prefill_s([(new, before) for _, new, before in parts])
        if self.preemption is not None and stoppable(parts[0].request):
            self._sliced = self.preemption.sliced(parts, seconds)
            seconds = self._sliced.slice_s
        self._compute(seconds)
        if self.neighbours is not None:
            self.neighbours.busy(self, "prefill")

    def _compute(self, seconds: float) -> None:
        self._left_s, self._paced = seconds, self.events.now
        self._ending = self.events.after(seconds / self._speed, self._done)

    def _beside(self, stopped: SlicedPass) -> None:
        """A stopped pass: the next batch of latency-sensitive requests, or it goes on."""
        parts = self._next(stopped.wanted(self.prompts.halves, self.events.now))
        if parts:
            self._run(parts)
            return
        stopped.resume(self.events.now)
        self._stopped, self._sliced, self._passing = None, stopped, stopped.parts
        self._compute(stopped.slice_s)

    def _boundary(self, sliced: SlicedPass) -> bool:
        """Between two slices; False when that was the last one."""
        sliced.sliced()
        if sliced.over:
            self._sliced = None
            return False
        waiting = [each for each in self.prompts.waiting if latency_sensitive(each)]
        if sliced.stops(waiting, self.events.now):
            sliced.stop(self.events.now)
            self._stopped, self._sliced, self._passing = sliced, None, []
            self._wake()
        else:
            self._compute(sliced.slice_s)
        return True

    def _begin(self, request: Request) -> bool:
        """Its prompt gets its place in the pool, if there is one."""
        if self.held_tokens and self.held_tokens + request.prompt > self.kv_tokens:
            return False
        self.prompts.begin(request, self.events.now)
        self.held_tokens += request.prompt
        self.prompts.cache.shrink(max(0, self.kv_tokens - self.held_tokens))
        return True

    def _done(self) -> None:
        self._ending = None
        if self._sliced is not None and self._boundary(self._sliced):
            return
        parts, self._passing = self._passing, []
        if self.behind:
            self._tell()
        self._computed += self.prompts.passed(parts)
        if self.early is not None:
            self.early.passed(parts, self.prompts.halves, self.events.now - self._began)
        if not self.behind or self._stopped is not None:
            self._tell()
        agenda, self._agenda = self._agenda, []
        for action in agenda:
            action()
        self._wake()

    def _tell(self) -> None:
        computed, self._computed = self._computed, []
        for request in computed:
            request.prefilled = self.events.now
            self.on_done(request)
