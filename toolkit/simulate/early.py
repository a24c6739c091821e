"""Decode ranks that are chosen while a long prompt's last passes run, and KV that leaves meanwhile:
what `patches.pd.early_choice` and SGLang do on a prefill worker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from toolkit.policies.early_choice import EarlyChoice, PrefillPace
from toolkit.simulate.prompt_queue import Part
from toolkit.simulate.request import Request

AHEAD = {"plain": 1, "overlap": 2, "cpu": 3}
"""By the worker's loop, passes between the end of a pass and the first KV on its way that the word
of it brought (`EarlyChoice.ahead`)."""


@dataclass(eq=False)
class EarlyChoices:
    """Of one prefill worker with passes of `chunk` tokens. `near`: a request's decode rank is to be
    chosen; `send`: so many tokens of its KV leave."""

    rule: EarlyChoice
    chunk: int
    loop: Literal["overlap", "cpu", "plain"]
    near: Callable[[Request], None]
    send: Callable[[Request, int], None]
    pace: PrefillPace = field(default_factory=PrefillPace)

    def __post_init__(self) -> None:
        self._to_tell: list[Request] = []
        self._placed: set[Request] = set()
        """Who had a place when the pass was launched that has just ended."""

    def passed(self, parts: Sequence[Part], unfinished: Sequence[Request], seconds: float) -> None:
        """A pass has ended; whose prompts are not through yet."""
        self.pace.computed(sum(part.new for part in parts), seconds)
        told, self._to_tell = self._to_tell, []
        for request in told:
            self.near(request)
        for request, new, before in parts:
            if request in unfinished:
                self._look(request, before, before + new)
            else:
                self._placed.discard(request)

    def _look(self, request: Request, before: int, done: int) -> None:
        if request.asked:
            if request.place is not None:
                self._send(request, before, done)
            return
        if self.rule.now(request.cached, done, request.prompt, self.chunk, self.pace):
            request.asked = True
            if self.loop == "cpu":  # it looks at what a pass has made when the next one is done
                self._to_tell.append(request)
            else:
                self.near(request)

    def _send(self, request: Request, before: int, done: int) -> None:
        if self.loop == "plain" or request in self._placed:
            upto = before if self.loop == "cpu" else done
            self.send(request, upto - request.sent)
            request.sent = upto
        self._placed.add(request)
