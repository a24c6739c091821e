"""Which prompts are in a worker's next pass where best-effort ones give way to all others."""

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.simulate.prompt_queue import Part, PromptQueue
from toolkit.simulate.request import Request

WAIT_LIMIT = 64
"""As `patches.preempt.admission` has it."""
Wanted = Callable[[Request], bool]


def everybody(request: Request) -> bool:
    return True


def unstoppable(request: Request) -> bool:
    return not request.best_effort


def stoppable(request: Request) -> bool:
    return request.best_effort


def latency_sensitive(request: Request) -> bool:
    return request.urgent


@dataclass
class PromptOrder:
    """Best-effort prompts are in passes of their own, when nobody else waits; where a worker
    decodes, too, also not while answers of latency-sensitive requests go on. Once WAIT_LIMIT passes
    or steps of others went before those that wait, their next pass goes first."""

    passed: int = 0
    """Passes and steps of others since the last one of theirs, while some wait."""

    def next(
        self, prompts: PromptQueue, answering: bool, make: Callable[[Wanted], list[Part]]
    ) -> list[Part]:
        """The next pass. `answering`: answers of latency-sensitive requests go on; `make`: the pass
        of those who are wanted, as far as they find room."""
        halves, waiting = prompts.halves, prompts.waiting
        best_effort_half = any(map(stoppable, halves))
        best_effort = best_effort_half or any(map(stoppable, waiting))
        other_half = any(map(unstoppable, halves))
        if not best_effort or not (answering or other_half or any(map(unstoppable, waiting))):
            self.passed = 0
            return make(everybody)
        if self.passed >= WAIT_LIMIT and not other_half:
            self.passed = 0
            return make(stoppable)
        parts = make(unstoppable)
        if not parts and not answering and best_effort_half:
            # None of the others finds room: it may be the prompt that is half done which has it.
            return make(stoppable)
        self.passed += answering or bool(parts)
        return parts
