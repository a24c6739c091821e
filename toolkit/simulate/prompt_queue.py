"""Prompts that wait at a worker, and who of them is in its next forward pass."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isnan
from typing import NamedTuple

from toolkit.policies.sjf import ShortestFirst, WaitingRequest
from toolkit.simulate.prefix_cache import PrefixCache
from toolkit.simulate.request import Request


class Part(NamedTuple):
    """Of a forward pass: `new` tokens of a prompt, after `before` of them that are known."""

    request: Request
    new: int
    before: int


@dataclass(eq=False)
class PromptQueue:
    """In order of arrival, or `shortest` first, in passes of at most `chunk` tokens.

    As SGLang's `PrefillAdder`: the prompt that is half done comes first, then whole ones as long as
    the chunk has room, of the last one a part. Who is not let in keeps those behind it waiting.
    `by_class`: latency-sensitive ones stand before all others, best-effort ones behind, as with
    `--enable-priority-scheduling`.
    """

    chunk: int = 8192
    shortest: ShortestFirst | None = None
    cache: PrefixCache = field(default_factory=PrefixCache)
    waiting: list[Request] = field(default_factory=list)
    halves: list[Request] = field(default_factory=list)
    """Of which a part is computed: one, or where passes are of those who are `wanted` one of each
    kind."""
    computed_tokens: int = 0
    hit_tokens: int = 0
    by_class: bool = False
    _since: dict[Request, int] = field(default_factory=dict)

    def add(self, request: Request, count: int) -> None:
        """A request comes, at this value of the counter by which the order ages."""
        self.waiting.append(request)
        self._since[request] = count

    @property
    def all(self) -> list[Request]:
        """Whose prompts are not computed, or only in part."""
        return [*self.halves, *self.waiting]

    def next_pass(
        self,
        left: int,
        count: int,
        let_in: Callable[[Request], bool],
        wanted: Callable[[Request], bool] = lambda request: True,
    ) -> list[Part]:
        """Who takes the next `left` tokens, at this value of the counter. `let_in`: there is room
        for one more, which has been told by `begin`. `wanted`: the others stay where they are, and
        nobody waits behind them."""
        parts: list[Part] = []
        for request in [each for each in self.halves if wanted(each)]:
            if left > 0:
                left -= self._add(parts, request, left)
        if left > 0 and self.shortest is not None:
            self._sort(self.shortest, count)
        if self.by_class:
            self.waiting.sort(key=lambda each: each.best_effort - each.urgent)
        passed_over: list[Request] = []
        looked = 0
        for request in self.waiting:
            if left <= 0:
                break
            if not wanted(request):
                passed_over.append(request)
            elif let_in(request):
                left -= self._add(parts, request, left)
            else:
                break
            looked += 1
        self.waiting[:looked] = passed_over
        return parts

    def begin(self, request: Request, now: float) -> None:
        """It gets its place; what the cache has of it is not computed again."""
        request.cached = self._seen(request)
        if isnan(request.prefill_began):
            request.prefill_began = now
        self.hit_tokens += request.cached
        self._since.pop(request)

    def passed(self, parts: list[Part]) -> list[Request]:
        """The pass is over; those whose prompt is whole now."""
        for request, new, _ in parts:
            request.computed += new
            self.computed_tokens += new
        return [request for request, _, _ in parts if request not in self.halves]

    def _add(self, parts: list[Part], request: Request, left: int) -> int:
        before = request.cached + request.computed
        new = min(request.to_fill - before, left)
        parts.append(Part(request, new, before))
        if request in self.halves:
            self.halves.remove(request)
        if before + new < request.to_fill:
            self.halves.append(request)
        return new

    def _sort(self, shortest: ShortestFirst, count: int) -> None:
        queued = [
            WaitingRequest(
                f"{each.number:012d}", each.to_fill - self._seen(each), self._since[each]
            )
            for each in self.waiting
        ]
        self.waiting = [self.waiting[i] for i in shortest.order(queued, count)]

    def _seen(self, request: Request) -> int:
        # As SGLang: one token at least is computed, for there is no logit without it.
        return min(self.cache.match(request.blocks), request.to_fill - 1)
