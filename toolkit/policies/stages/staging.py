"""Stages for a trace's lengths, or for those that are live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from toolkit.policies.stages.crowd import of_answers, of_live
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.partition import FREE, Partition, Problem, exact, heuristic
from toolkit.policies.stages.qoe import Qoe

Method = Literal["exact", "heuristic"]
METHODS: dict[Method, Callable[[Problem], Partition]] = {"exact": exact, "heuristic": heuristic}


def plan_stages(
    answers: Sequence[tuple[int, int]],
    instances: int,
    qoe: Qoe,
    in_flight: float,
    move_s: Callable[[int], float] = FREE,
    mixed: float | None = None,
    most_stages: int | None = None,
    method: Method = "exact",
) -> Partition:
    """Stages for requests of these (prompt, output tokens), of which `in_flight` decode at a time
    on so many instances. See `Problem` for the rest. ValueError: as `of_answers` and `Problem`."""
    crowd = of_answers(answers, in_flight)
    return METHODS[method](Problem(crowd, instances, qoe, move_s, mixed, most_stages))


def plan_live(
    live: Sequence[tuple[int, int]],
    instances: int,
    qoe: Qoe,
    move_s: Callable[[int], float] = FREE,
    mixed: float | None = None,
    most_stages: int | None = None,
    method: Method = "exact",
) -> Partition:
    """The same for the (prompt, KV tokens) of all requests that decode now."""
    return METHODS[method](Problem(of_live(live), instances, qoe, move_s, mixed, most_stages))


def stages_for(
    answers: Sequence[tuple[int, int]],
    instances: int,
    qoe: Qoe,
    in_flight: float,
    move_s: Callable[[int], float] = FREE,
    mixed: float | None = None,
    most_stages: int | None = None,
) -> Layout:
    """The layout of `plan_stages`."""
    return plan_stages(answers, instances, qoe, in_flight, move_s, mixed, most_stages).layout
