"""Ranks that decode in step, kept full from a pool: what an assigner does to them in the long run.

Not the simulator: no prefill, no transfer, no time. A step is one token for every request.
`delay`: steps that pass from a decision to the request's first step. Its slot is taken and its KV
counted by whoever decides, but it is not in the steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from toolkit.policies import Load, RequestView, WorkerView
from toolkit.policies.rounds.assign import Assigner
from toolkit.policies.support.inflight_lengths import InflightLengths


@dataclass
class Running:
    rid: str
    request: RequestView
    length: int
    generated: int = 0
    begins: int = 0


@dataclass
class ClosedLoop:
    """`ranks` x `slots` running at most, `pool` waiting at the start of each round."""

    assigner: Assigner
    draw: Callable[[np.random.Generator], tuple[RequestView, int]]
    ranks: int = 8
    slots: int = 16
    pool: int = 24
    delay: int = 0
    seed: int = 0
    inflight: InflightLengths | None = None
    spreads: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)

    def run(self, steps: int, warm_up: int) -> None:
        """Spread (max - min KV tokens in a step) and idle share (1 - mean / max) of each step after
        the warm-up; steps that each request waited in the pool."""
        rng = np.random.default_rng(self.seed)
        on: list[list[Running]] = [[] for _ in range(self.ranks)]
        waiting: list[tuple[Running, int]] = []
        made = 0
        for step in range(steps):
            while len(waiting) < self.pool:
                request, length = self.draw(rng)
                waiting.append((Running(f"r{made}", request, length), step))
                made += 1
            views = [self._view(g, there) for g, there in enumerate(on)]
            taken = set()
            for at, worker, _ in self.assigner.assign(views, [r.request for r, _ in waiting]):
                running, since = waiting[at]
                running.begins = step + self.delay
                taken.add(at)
                on[worker].append(running)
                self.waits.append(step - since)
                if self.inflight is not None:
                    self.inflight.sent(running.rid, views[worker].key, running.request)
            waiting = [entry for at, entry in enumerate(waiting) if at not in taken]
            loads = [sum(_tokens(r) for r in there if r.begins <= step) for there in on]
            if step >= warm_up:
                self.spreads.append(max(loads) - min(loads))
                self.idle.append(1 - sum(loads) / (self.ranks * max(loads)))
            on = [[r for r in there if self._step(r, step)] for there in on]

    def _step(self, running: Running, step: int) -> bool:
        """Whether it goes on after this step."""
        if running.begins > step:
            return True
        running.generated += 1
        if self.inflight is not None:
            self.inflight.counted(running.rid)
        goes_on = running.generated < running.length
        if not goes_on and self.inflight is not None:
            self.inflight.ended(running.rid)
        return goes_on

    def _view(self, g: int, there: list[Running]) -> WorkerView:
        load = Load(len(there), 0, sum(_tokens(r) for r in there), 0, 0)
        return WorkerView("decode", dp_rank=g, load=load, slots=self.slots)


def _tokens(running: Running) -> int:
    return running.request.prompt_tokens + running.generated


def conversation(rng: np.random.Generator) -> tuple[RequestView, int]:
    """Long-tailed prompts and answers."""
    prompt = int(np.clip(rng.lognormal(6.5, 1.0), 16, 8000))
    length = int(np.clip(rng.lognormal(4.5, 0.8), 4, 1000))
    return RequestView(prompt_tokens=prompt, max_new_tokens=length), length


def unlimited(
    draw: Callable[[np.random.Generator], tuple[RequestView, int]],
) -> Callable[[np.random.Generator], tuple[RequestView, int]]:
    """The same requests, without a limit that gives their length away."""

    def drawn(rng: np.random.Generator) -> tuple[RequestView, int]:
        request, length = draw(rng)
        return replace(request, max_new_tokens=0), length

    return drawn
