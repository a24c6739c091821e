"""Requests that move from one decode rank to another while they decode, with what that costs."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import nan
from typing import Any, Literal, Protocol, get_args

from toolkit.decide.reservation import Reservation
from toolkit.policies.stages.running import Why
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.events import Events
from toolkit.simulate.histogram import Histogram
from toolkit.simulate.movable import Movable
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.request import Request

Kind = Literal["direct", "replay"]
AHEAD = 64
"""Tokens that a request may say before its KV has been sent, for which a place is kept, too."""


@dataclass(eq=False)
class SimulatedMove:
    """One move. `place`: kept on the target by the decider. `length`: of the request in KV tokens,
    when it began. `tokens`: KV tokens of the place that is kept at the target, 0 for none. `left`:
    when it said its last token at the source; NaN: it is still there."""

    request: Request
    source: SimulatedRank
    target: SimulatedRank
    place: Reservation
    why: Why
    length: int
    tokens: int
    left: float = nan


@dataclass
class MoveFigures:
    """`moves` that were made, by reason; `given_up`: begun, but the request ended or lost its KV
    first. `stall`: seconds between the last token at the source and the next one."""

    moves: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    given_up: int = 0
    stall: Histogram = field(default_factory=Histogram)

    def result(self) -> dict[str, Any]:
        """By name; times in seconds, 0 without a move."""
        stall = self.stall if self.stall.count else None
        return {
            "moves": self.moves.total(),
            **{f"moves_{why}": self.moves[why] for why in get_args(Why)},
            "moves_given_up": self.given_up,
            "moved_tokens": self.tokens,
            "move_stall_mean": stall.mean if stall else 0.0,
            **{f"move_stall_p{p}": stall.percentile(p) if stall else 0.0 for p in (50, 99)},
        }


class MoveObserver(Protocol):
    """Who tells the decider (`toolkit.simulate.router.SimulatedRouter`)."""

    def moved(self, moving: SimulatedMove, said: int, stall_s: float) -> None:
        """The request goes on at the target, with so many tokens said."""

    def given_up(self, moving: SimulatedMove) -> None:
        """It stays where it is, or has ended."""


class SimulatedMoves:
    """Makes moves, as `toolkit migrate` does.

    `direct`: the source decodes on while its KV is sent, one request after the other from each
    worker, over a line as fast as that from prefill to decode (`CostModel.transfer_s`). Then, at
    the end of a step, the request leaves, the rows of what it said meanwhile follow, and it goes on
    at the target as one whose KV came from prefill does: a stall of about two steps. Its place is
    kept there from the start.

    `replay`: it leaves the source at once. Its prefill worker, which still has the prompt's KV,
    computes that of the answer so far and sends all of it to the place that is kept; where workers
    do both, it waits at the target for its prefill like one that was retracted.
    """

    def __init__(
        self,
        events: Events,
        cost: CostModel,
        kind: Kind,
        hop_s: float,
        observer: MoveObserver,
        groups: Iterable[Movable],
        again: Callable[[Request, Callable[[], None]], None] | None = None,
    ) -> None:
        """`again`: let the request's prefill worker compute its answer so far and send all of its
        KV; then call that. None: workers do both."""
        self.events = events
        self.cost = cost
        self.kind = kind
        self.figures = MoveFigures()
        self.under_way: dict[Request, SimulatedMove] = {}
        self._hop_s = hop_s
        self._observer = observer
        self._groups = {rank: group for group in groups for rank in group.ranks}
        self._again = again
        self._line_free: dict[str, float] = {}

    def begin(
        self,
        request: Request,
        source: SimulatedRank,
        target: SimulatedRank,
        place: Reservation,
        why: Why,
    ) -> None:
        """The request, which decodes at the source, is to go to its place on the target; it stays
        where the target has none."""
        length = self._groups[source].length_of(request)
        queues = self.kind == "replay" and self._again is None
        moving = SimulatedMove(
            request, source, target, place, why, length, 0 if queues else length + AHEAD
        )
        if moving.tokens:
            if not self._groups[target].has_place(target):
                self.figures.given_up += 1
                self.events.after(self._hop_s, self._observer.given_up, moving)
                return
            self._groups[target].expect(target, moving.tokens)
        self.under_way[request] = moving
        if self.kind == "direct":
            self._send(moving)
        else:
            self.events.after(self._hop_s, self._cut, moving)

    def ended(self, request: Request) -> None:
        """A request has ended; if it was about to move it does not."""
        moving = self.under_way.get(request)
        if moving is not None:
            self._give_up(moving)

    def _send(self, moving: SimulatedMove) -> None:
        latency = self.cost.transfer_s(0)
        line = moving.source.name
        begin = max(self.events.now, self._line_free.get(line, 0.0))
        done = begin + self.cost.transfer_s(moving.length) - latency
        self._line_free[line] = done
        self.events.at(done + latency, self._cut, moving)

    def _cut(self, moving: SimulatedMove) -> None:
        """Leave when the step that runs is over."""
        if self.under_way.get(moving.request) is moving:
            self._groups[moving.source].at_boundary(self._leave, moving)

    def _leave(self, moving: SimulatedMove) -> None:
        request, source, target = moving.request, moving.source, moving.target
        if self.under_way.get(request) is not moving:
            return
        if not self._groups[source].take_out(source, request):
            self.events.at(self.events.now, self._give_up, moving)
            return
        moving.left = self.events.now
        self._groups[target].tell_back(request, partial(self._goes_on, moving))
        if self.kind == "direct":
            rest = request.prompt + request.generated - moving.length
            self.events.after(self.cost.transfer_s(rest), self._put_in, moving)
        elif self._again is not None:
            self.events.after(self._hop_s, self._again, request, partial(self._put_in, moving))
        else:
            request.cached = request.computed = 0
            self.events.after(2 * self._hop_s, self._groups[target].arrive, target, request)

    def _put_in(self, moving: SimulatedMove) -> None:
        self._groups[moving.target].put_in(moving.target, moving.request, moving.tokens)

    def _goes_on(self, moving: SimulatedMove) -> None:
        request, group = moving.request, self._groups[moving.target]
        del self.under_way[request]
        running = request in moving.target.running
        said = group.said(request) if running else request.generated
        self.figures.moves[moving.why] += 1
        self.figures.tokens += request.prompt + said - 1
        stall_s = self.events.now - moving.left
        self.figures.stall.add(stall_s)
        self._observer.moved(moving, said, stall_s)

    def _give_up(self, moving: SimulatedMove) -> None:
        if self.under_way.get(moving.request) is not moving:
            return
        del self.under_way[moving.request]
        if moving.tokens:
            self._groups[moving.target].release(moving.target, moving.tokens)
        self.figures.given_up += 1
        self._observer.given_up(moving)
