"""Which decode ranks serve which lengths."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class LengthStage:
    """`replicas` decode ranks for requests of at most `upto` KV tokens (prompt + output so far)
    that the stage before it does not take; None: of any length. ValueError: either below 1."""

    upto: int | None
    replicas: int

    def __post_init__(self) -> None:
        if self.upto is not None and self.upto < 1:
            raise ValueError(f"a stage upto {self.upto} serves nobody: give 1 or more KV tokens")
        if self.replicas < 1:
            raise ValueError(f"a stage of {self.replicas} replicas serves nobody: give 1 or more")


@dataclass(frozen=True, slots=True)
class Layout:
    """Stages from the shortest lengths to the longest, and their ranks in the same order: the first
    stage has ranks 0 to its `replicas` - 1, and so on.

    ValueError: no stage, bounds that do not rise, or a last stage with a bound, which would leave
    longer requests to nobody.
    """

    stages: tuple[LengthStage, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("a layout needs at least one stage")
        *inner, last = self.stages
        if last.upto is not None:
            raise ValueError(
                f"the last stage ends at {last.upto}, so that nobody serves longer requests: "
                "leave its upto out"
            )
        bounds = []
        for place, stage in enumerate(inner):
            if stage.upto is None:
                raise ValueError(
                    f"stage {place} has no upto, so that those after it get nothing: only the last "
                    "stage goes without"
                )
            bounds.append(stage.upto)
        for place in range(1, len(bounds)):
            if bounds[place] <= bounds[place - 1]:
                raise ValueError(
                    f"stage {place} ends at {bounds[place]}, not above the {bounds[place - 1]} of "
                    "the stage before it: upto must rise from stage to stage"
                )

    @classmethod
    def of(cls, stages: Iterable[tuple[int | None, int]]) -> Layout:
        """From pairs (upto, replicas)."""
        return cls(tuple(LengthStage(upto, replicas) for upto, replicas in stages))

    @property
    def bounds(self) -> tuple[int, ...]:
        """The `upto` of every stage but the last, which has none."""
        return tuple(stage.upto for stage in self.stages if stage.upto is not None)

    @property
    def ranks(self) -> int:
        """Of all stages."""
        return sum(stage.replicas for stage in self.stages)

    def stage_of(self, length: int) -> int:
        """Whose range holds a request of so many KV tokens."""
        return bisect_left(self.bounds, length)

    def stage_of_rank(self, index: int) -> int:
        """Of a rank, counted over all stages from 0. IndexError: there is no such rank."""
        if not 0 <= index < self.ranks:
            raise IndexError(f"no rank {index}: the stages have {self.ranks}")
        return bisect_right(list(accumulate(stage.replicas for stage in self.stages)), index)

    def range_of(self, stage: int) -> tuple[int, int | None]:
        """The shortest and the longest request of a stage, in KV tokens; None: any."""
        below = self.stages[stage - 1].upto if stage else 0
        return (below or 0) + 1, self.stages[stage].upto

    def __str__(self) -> str:
        return ", ".join(
            f"{self.shown(place)} x {stage.replicas}" for place, stage in enumerate(self.stages)
        )

    def shown(self, stage: int) -> str:
        """Its range in words: `1-512`, `513-`."""
        low, high = self.range_of(stage)
        return f"{low}-{'' if high is None else high}"

    def bounded(self, bounds: Sequence[int]) -> Layout:
        """The same ranks with other bounds, as range refinement has them. ValueError: as above, or
        not as many bounds as there are."""
        if len(bounds) != len(self.stages) - 1:
            raise ValueError(f"{len(self.stages)} stages have one bound less, not {len(bounds)}")
        return Layout(
            tuple(
                replace(stage, upto=upto)
                for stage, upto in zip(self.stages, (*bounds, None), strict=True)
            )
        )

    def nearest(self, stage: int) -> list[int]:
        """All stages by their distance from one, itself first; of two as near the later one, which
        serves longer requests anyway."""
        return sorted(range(len(self.stages)), key=lambda other: (abs(other - stage), -other))
