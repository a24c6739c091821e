"""Fair: best-effort work keeps a share of the time."""

from toolkit.policies.preemption.boundary import Boundary, BoundaryChoice


class Fair:
    """Yield as long as the pass, when it goes on, has had its share of the time since it began.

    Formula, ran and paused = seconds of this pass so far, T = what all who wait are expected to
    take, s = the share:

        yield if  ran >= s * (ran + paused + T)

    So a pass that runs for R seconds by itself takes about R / s at most, and a pause that is
    expected to cost more than that waits for later boundaries, or for the end of the pass. Where T
    is not known (0), the last pause may exceed the share; the next ones pay for it.
    Knob: `share`, above 0 and at most 1 (1: nothing yields); default 0.5.
    ValueError: another one. Source: *ours*.
    """

    def __init__(self, share: float = 0.5) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share = {share:g} must be above 0 and at most 1")
        self.share = share

    def __call__(self, state: Boundary) -> BoundaryChoice:
        if not state.urgent or self.share == 1:
            return "continue"
        whole = state.ran_s + state.paused_s + state.takes_s
        return "yield" if state.ran_s >= self.share * whole else "continue"
