"""What each system hangs on, by the costs: a sentence with its figures.

No simulation: a decode step of the batch that a rank has on average, and the same step with what
the system would change of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from toolkit.simulate.costs import links_of, minds_lengths
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.costs.drafted import drafted
from toolkit.simulate.costs.links import Links
from toolkit.simulate.costs.overlapped import Overlapped
from toolkit.simulate.expert_time import ExpertTime

if TYPE_CHECKING:
    import numpy as np

    from toolkit.bench.suite.question import Subject
    from toolkit.plan.candidate import Candidate
    from toolkit.simulate.experts import SimulatedExperts
    from toolkit.simulate.request import Request

LOOKED_AT = 2000
"""Requests whose lengths are looked at."""
FEWER = 0.1
"""The share of experts by which a step is asked how much it minds."""


class LaidStep(NamedTuple):
    """Seconds of a decode step and of the all-to-all in it; what the busiest GPU loads of a layer's
    experts, over the mean."""

    step_s: float
    sent_s: float
    uneven: float


class Arithmetic:
    """Of one deployment under one traffic. `requests`: some of them; `figures`: those of the
    simulation, for each seed."""

    def __init__(
        self,
        cost: CostModel,
        candidate: Candidate,
        requests: Sequence[Request],
        figures: Sequence[Mapping[str, Any]],
        experts: SimulatedExperts | None,
    ) -> None:
        self._fleet, self._layers = candidate.fleet, _layers(candidate)
        self._alone, self._cost = cost, drafted(cost, self._fleet.drafting)
        drafting = self._fleet.drafting
        self._of_a_token = self._experts = experts
        if experts is not None and drafting is not None:
            self._experts = experts.verified(drafting.verified)
        decode = self._fleet.decode
        self._group = decode.dp if decode.dp_attention else 1
        ranks = self._fleet.decode_ranks
        self._prompt = round(statistics.fmean(each.prompt for each in requests))
        self._answer = statistics.fmean(each.output for each in requests)
        self._length = round(self._prompt + self._answer / 2)

        def mean(name: str) -> float:
            return statistics.fmean(float(each[name]) for each in figures)

        self._kv_mean, self._kv_max = mean("kv_mean"), mean("kv_max")
        self._flying = mean("output_tokens_s") * mean("tpot_mean") / ranks  # by Little's law
        self._batch = max(1, round(self._flying))

    def of(self, system: Subject) -> str:
        """The sentence; empty where the costs say nothing of that system."""
        say: dict[Subject, Callable[[], str]] = {
            "late dispatch": self._late,
            "level KV": self._level,
            "expert locality": self._locality,
            "preempted prompts": self._stops,
            "moves": self._moves,
            "stages": self._stages,
            "speculative decoding": self._draft,
        }
        return say[system]() if system in say else ""

    def served(self, steps: int) -> int:
        """Requests that those who take a step together answer in so many."""
        return round(steps * self._flying * self._group / self._answer)

    def laid(self, experts: SimulatedExperts) -> LaidStep:
        """A step of the mean batch whose experts lie so."""
        import numpy as np

        links = links_of(self._cost)
        time, sent_s = self._experts_of(experts, links), 0.0
        if links is not None:
            bare = links_of(Overlapped(self._cost, 1.0))  # what experts compute stays
            sent_s = time.crossing_s - self._experts_of(experts, bare).crossing_s
        count, held = np.full(self._group, self._batch), np.full(self._group, round(self._kv_mean))
        step_s = self._cost.decode_s(count, held, time.busiest) + time.crossing_s
        return LaidStep(step_s, sent_s, time.busiest * experts.gpus / time.distinct)

    def _experts_of(self, experts: SimulatedExperts, links: Links | None) -> ExpertTime:
        """Of a batch of the mean size, from all of the traffic."""
        time = ExpertTime(experts, links, self._group)
        rows, together = experts.traffic, self._batch * self._group
        for number in range(together):
            time.add(number // self._batch, rows[number * len(rows) // together])
        time.look()
        return time

    def _step(
        self, kv_tokens: float | None = None, distinct: float | None = None, longest: float = 0.0
    ) -> float:
        """Seconds of a decode step of the mean batch, with these changes."""
        import numpy as np

        count = np.full(self._group, self._batch)
        held = np.full(self._group, round(self._kv_mean if kv_tokens is None else kv_tokens))
        mixed = self._mixed(self._experts) if distinct is None else distinct
        tall = np.full(self._group, round(longest)) if longest else None
        return self._cost.decode_s(count, held, mixed, tall)

    def _mixed(self, experts: SimulatedExperts | None) -> float:
        """Expected distinct experts of a step of requests that have nothing in common."""
        import numpy as np

        if experts is None:
            return 0.0
        absent = np.exp(experts.absent).mean(axis=0)
        return _loaded(1 - absent ** (self._batch * self._group), experts)

    def _alike(self) -> float:
        """The same of requests that all use the same experts."""
        import numpy as np

        experts = self._experts
        assert experts is not None
        together = self._batch * self._group
        every = -np.expm1(experts.absent * together)
        return statistics.fmean(_loaded(one, experts) for one in every)

    def _late(self) -> str:
        sent = self._cost.transfer_s(self._prompt)
        ran = self._cost.prefill_s([(self._prompt, 0)])
        return (
            f"a prompt of {self._prompt:,} tokens runs for {ms(ran)}, and its KV crosses in "
            f"{ms(sent)}, which late dispatch sends after it"
        )

    def _level(self) -> str:
        least, now = self._step(), self._step(self._kv_max)
        return (
            f"the fullest rank holds {self._kv_max / max(self._kv_mean, 1):.2f} times the mean KV: "
            f"level, a step of {ms(now)} would take {percent(now - least, now)} less"
        )

    def _locality(self) -> str:
        assert self._experts is not None
        mixed, alike, layers = self._mixed(self._experts), self._alike(), self._experts.layers
        now = self._step()
        where = "" if self._experts.gpus == 1 else " on the busiest GPU"
        less = now - self._step(distinct=(1 - FEWER) * mixed)
        return (
            f"{self._batch * self._group} requests decode together and load {mixed / layers:.0f} "
            f"of {self._experts.experts} experts a layer{where}, alike ones {alike / layers:.0f}; "
            f"{100 * FEWER:.0f} % fewer take {percent(less, now)} off a step of {ms(now)}"
        )

    def _stops(self) -> str:
        chunk = self._fleet.prefill.chunk
        whole = self._cost.prefill_s([(chunk, 0)])
        said = f"a pass over {chunk:,} tokens takes {ms(whole)}"
        if self._layers < 2:
            return f"{said}, and stops between chunks alone"
        return f"{said}, a layer of it {ms(whole / self._layers)}"

    def _moves(self) -> str:
        sent, step = self._cost.transfer_s(self._length), self._step()
        return (
            f"a request of {self._length:,} tokens moves in {ms(sent)}, {sent / step:.1f} decode "
            "steps"
        )

    def _stages(self) -> str:
        if not minds_lengths(self._cost):
            return "by these costs a step does not mind how long the requests of a batch are"
        even = self._step(longest=self._kv_mean / self._batch)
        tall = self._step(longest=4 * self._kv_mean / self._batch)
        return (
            f"a step of {ms(even)} takes {percent(tall - even, even)} more where one request is "
            "four times as long as the mean"
        )

    def _draft(self) -> str:
        drafting = self._fleet.drafting
        if drafting is None or drafting.share is None:
            return ""
        step = self._step()
        ratio = step / self._without_s()
        return (
            f"a step of {self._batch * self._group} requests that verifies {drafting.verified} "
            f"tokens of each takes {ms(step)}, {ratio:.2f} times one without a draft, and gives "
            f"each {drafting.accepted:.2f} tokens"
        )

    def _without_s(self) -> float:
        """A step of the mean batch without its draft."""
        import numpy as np

        count, held = np.full(self._group, self._batch), np.full(self._group, round(self._kv_mean))
        return self._alone.decode_s(count, held, self._mixed(self._of_a_token))


def _loaded(present: np.ndarray, experts: SimulatedExperts) -> float:
    """Experts of all layers whose chances to be there are these; where they lie on several GPUs
    those of each layer's busiest, for which the others wait."""
    if experts.gpus == 1:
        return float(present.sum())
    on_gpus = present.reshape(experts.layers, experts.gpus, -1).sum(axis=2)
    return float(on_gpus.max(axis=1).sum())


def _layers(candidate: Candidate) -> int:
    """Between which prompts can be stopped; 0 where nobody knows."""
    from toolkit.plan.preempt import stoppable

    return stoppable(candidate)


def ms(seconds: float) -> str:
    """A time for people."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def percent(part: float, whole: float) -> str:
    """A part in percent."""
    return f"{100 * part / whole:.1f} %"
