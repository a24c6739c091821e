"""Deadline: yield only to who would be late otherwise."""

from itertools import accumulate
from math import isnan

from toolkit.policies.preemption.boundary import Boundary, BoundaryChoice


class Deadline:
    """Yield when one more slice would make a latency-sensitive request miss its SLO.

    Formula, over those who wait, in order of arrival, T_i = their expected prefill times up to and
    with i, h = the next slice, or what is left of the pass if that is less:

        yield if for some i:  waited_i + h + T_i + margin > SLO_i

    So a pass that will be over in time is never stopped, and as few pauses are made as the SLOs
    allow. Who is late already is let in at once: each further slice makes it later. Without an SLO
    nobody is late, and nothing is stopped.
    Knob: `margin_s`, for what the expectation does not know (seconds, at least 0; default 0.01).
    ValueError: a margin that is negative or not a number. Source: *ours*; QLLM's SLO is 3 s.
    """

    def __init__(self, margin_s: float = 0.01) -> None:
        if isnan(margin_s) or margin_s < 0:
            raise ValueError(f"margin_s = {margin_s:g} must be at least 0")
        self.margin_s = margin_s

    def __call__(self, state: Boundary) -> BoundaryChoice:
        more = min(state.slice_s, state.left_s) + self.margin_s
        through = accumulate(each.takes_s for each in state.urgent)
        late = any(
            each.waited_s + more + done > each.slo_s
            for each, done in zip(state.urgent, through, strict=True)
        )
        return "yield" if late else "continue"
