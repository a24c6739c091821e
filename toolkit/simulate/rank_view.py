"""A rank as the router knows it."""

from dataclasses import replace

from toolkit.policies.base import Load, WorkerView
from toolkit.policies.support.stoppable import without_best_effort
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.request import Request


class RankView:
    """What the router knows of a decode rank beyond its steps: who was bound and has not begun, and
    the best-effort requests that were bound. `stops`: it prefills, too, and stops their prompts."""

    __slots__ = (
        "best_effort",
        "best_effort_tokens",
        "bound",
        "bound_tokens",
        "rank",
        "reading",
        "sent",
        "stops",
        "unbegun",
        "waiting",
        "waiting_tokens",
    )

    def __init__(self, rank: SimulatedRank, stops: bool = False) -> None:
        self.rank = rank
        self.stops = stops
        self.bound = 0
        self.bound_tokens = 0
        self.best_effort = 0
        self.best_effort_tokens = 0
        self.waiting = 0
        self.waiting_tokens = 0
        self.reading: Load | None = None
        self.sent: list[int] = []
        """Tokens of what was sent since the reading."""
        self.unbegun: dict[Request, None] = {}
        """Who was sent here and has said nothing yet."""

    def live(self) -> Load:
        rank = self.rank
        computing = rank.group.computing(rank.place)
        return Load(
            running=len(rank.running),
            waiting=self.waiting,
            used_tokens=rank.group.kv_of(rank.place) + computing,
            total_tokens=rank.capacity,
            waiting_tokens=max(0, self.waiting_tokens - computing),
        )

    def bind(self, request: Request) -> None:
        """A request is sent here."""
        self.expect(request, request.prompt)
        self.unbegun[request] = None

    def began(self, request: Request) -> None:
        """It said its first token."""
        self.waits_no_more(request.prompt)
        del self.unbegun[request]

    def expect(self, request: Request, tokens: int) -> None:
        """A request comes, of so many KV tokens: a new one, or one that moves here."""
        self._count(request, 1)
        self.waiting += 1
        self.waiting_tokens += tokens
        if self.reading is not None:
            self.sent.append(tokens)

    def waits_no_more(self, tokens: int) -> None:
        """One of so many KV tokens goes on here, or does not come."""
        self.waiting -= 1
        self.waiting_tokens -= tokens

    def leave(self, request: Request) -> None:
        """Its last token was relayed, or it goes on elsewhere."""
        self._count(request, -1)

    def _count(self, request: Request, one: int) -> None:
        self.bound += one
        self.bound_tokens += one * request.prompt
        if request.best_effort:
            self.best_effort += one
            self.best_effort_tokens += one * request.prompt

    def view_for(self, request: Request) -> WorkerView:
        """As the policy is to see it for this request."""
        view = self.view()
        if not (self.stops and request.urgent and self.best_effort):
            return view
        view = replace(view, inflight_tokens=self.bound_tokens)
        return without_best_effort(view, self.best_effort, self.best_effort_tokens)

    def view(self) -> WorkerView:
        rank, load = self.rank, self.reading
        if load is None:
            load = self.live()
        elif self.sent:
            load = replace(load, sent_requests=len(self.sent), sent_tokens=sum(self.sent))
        return WorkerView(
            rank.name,
            dp_rank=rank.dp_rank,
            inflight=self.bound,
            load=load,
            slots=rank.slots,
            reserve=rank.reserve,
            shares_experts=rank.shares_experts,
        )
