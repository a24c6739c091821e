"""BR-H's knowledge of what is in flight, told in steps of ranks instead of tokens of streams."""

from dataclasses import replace

from toolkit.policies.base import RequestView
from toolkit.policies.following import Following
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.request import Request


class Followed:
    """Tells `Following` of requests as the router does, but looks at a rank's steps only when
    somebody asks (`catch_up`)."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self._lengths = following.lengths
        self._told: dict[tuple[str, int], int] = {}
        self._since: dict[Request, int] = {}

    def sent(self, rank: SimulatedRank, request: Request, view: RequestView) -> None:
        if self._lengths:
            self._catch_up(rank)
            self._since[request] = self._told[rank.key]
        self._following.sent(str(request.number), rank.key, rank.experts, view)

    def joined(self, rank: SimulatedRank, request: Request) -> None:
        """Its first token came: the rank's steps before that were not its own."""
        if not self._lengths:
            return
        self._catch_up(rank)
        told = self._told[rank.key]
        self._following.counted(str(request.number), 1 + self._since[request] - told)
        self._since[request] = told - 1

    def moved(self, rank: SimulatedRank, request: Request, said: int) -> None:
        """It goes on at this rank, with so many tokens said."""
        if self._lengths:
            self._catch_up(rank)
            self._since[request] = self._told[rank.key] - said
        view = replace(request.view, prompt_tokens=request.prompt + said)
        self._following.sent(str(request.number), rank.key, rank.experts, view, said)

    def ended(self, rank: SimulatedRank, request: Request) -> None:
        rid = str(request.number)
        if self._lengths:
            self._catch_up(rank)
            counted = self._told[rank.key] - self._since.pop(request)
            self._following.counted(rid, request.output - counted)
        self._following.ended(rid)

    def catch_up(self, ranks: list[SimulatedRank]) -> None:
        """Count the steps that the ranks have done since."""
        for rank in ranks if self._lengths else ():
            self._catch_up(rank)

    def _catch_up(self, rank: SimulatedRank) -> None:
        done = rank.group.steps_of(rank)
        before = self._told.get(rank.key, done)
        if done > before:
            self._following.stepped(rank.key, done - before)
        self._told[rank.key] = done
