"""When a scheduler's loop hears of what, and tells it."""

from dataclasses import dataclass

from toolkit.simulate.drafting import Drafting


@dataclass(frozen=True)
class Scheduling:
    """How a scheduler's loop goes, in steps.

    `join`: steps that begin between the moment at which the loop sees that a request's KV is there
    (where workers prefill themselves: the request) and the request's first one. `notices`: steps
    between a request's last token and the moment at which it is sent to the client. `stays`: steps
    for which it then still holds its place. With SGLang's overlap scheduler on a GPU the loop
    prepares the next step while one runs: 1, 0, 1. On a CPU a step blocks the loop: 0, 1, 1.
    Without overlap: 0, 0, 0. `early`: a place is given while a step runs, as soon as the request is
    there (`patches.pd.early_place`). `drafting`: None where a step gives one token.
    """

    join: int = 1
    notices: int = 0
    stays: int = 1
    early: bool = False
    drafting: Drafting | None = None


OVERLAP, CPU_OVERLAP, PLAIN = Scheduling(), Scheduling(0, 1, 1), Scheduling(0, 0, 0)
