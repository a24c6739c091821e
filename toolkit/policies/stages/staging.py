"""Stages for a trace's lengths, and when not to use them."""

from collections.abc import Callable, Sequence
from typing import Literal

from toolkit.policies.stages.partition import FREE, Partition, StageProblem, exact, heuristic
from toolkit.policies.stages.population import of_answers
from toolkit.policies.stages.qoe import Qoe

LEAST_GAIN = 0.05
"""Stages that win less, by the model, are not worth what it does not see: fewer ranks to even the
load of a length out over, and moves."""

Method = Literal["exact", "heuristic"]
METHODS: dict[Method, Callable[[StageProblem], Partition]] = {
    "exact": exact,
    "heuristic": heuristic,
}


def plan_stages(
    answers: Sequence[tuple[int, int]],
    instances: int,
    qoe: Qoe,
    in_flight: float = 1.0,
    move_s: Callable[[int], float] = FREE,
    mixed: float | None = None,
    most_stages: int | None = None,
    method: Method = "exact",
    tokens_per_s: float = 0.0,
) -> Partition:
    """Stages for requests of these (prompt, output tokens), of which `in_flight` decode at a time
    on so many instances, or with `tokens_per_s` as many as come of it. See `StageProblem` for the
    rest. ValueError: as `of_answers`, `StageProblem` and `StageProblem.partition`."""
    population = of_answers(answers, in_flight)
    problem = StageProblem(population, instances, qoe, move_s, mixed, most_stages, tokens_per_s)
    return METHODS[method](problem)


def against(found: Partition, qoe: Qoe, error: float = 0.0) -> str:
    """Why not to use these stages; empty where they pay. `error`: of the fit, on requests that it
    has not seen."""
    if not qoe.minds_lengths:
        return "a step takes as long whatever the lengths are: stages win nothing"
    if len(found.layout.stages) == 1:
        return "one stage is best: by this profile lengths change the time of a step too little"
    if found.gain < LEAST_GAIN:
        return (
            f"stages would win {found.gain:.1%} of the time by output token, less than "
            f"{LEAST_GAIN:.0%}: lengths change the time of a step too little for what they cost"
        )
    if found.gain < error:
        return (
            f"stages would win {found.gain:.1%}, less than the {error:.1%} by which the QoE fit is "
            "off on requests that it has not seen: measure before you use them"
        )
    return ""
