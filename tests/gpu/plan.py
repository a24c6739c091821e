"""The steps, what is least known first: what each shows, needs, and is expected to take on one
H100. Direct moves have not been tried busy since their repair; outputs were equal each time."""

from dataclasses import dataclass

START_S = 80
"""To start one worker on an H100: SGLang's imports (27 s), weights, CUDA graphs whose Triton
kernels the first one compiles. Measured on 2026-11-26: 60 to 94 s."""


@dataclass(frozen=True)
class Step:
    """`starts` counts workers that start one after the other, `work_s` what comes on top:
    guesses for `late`, `lengths`, `migrate`, `deterministic`, `early`, `draft`, `eldr` and
    `classes`, what they took for the others.
    `groups` of parcels it needs."""

    name: str
    shows: str
    starts: int
    work_s: int
    groups: tuple[str, ...]

    @property
    def estimate_s(self) -> int:
        return self.starts * START_S + self.work_s

    @property
    def limit_s(self) -> int:
        """After so long the step is ended: twice the guess."""
        return 2 * self.estimate_s


STEPS = (
    Step("migrate", "decode -> decode moves of KV on one GPU", 3, 100, ("sglang", "mooncake")),
    Step("eldr", "decode batches of ELDR and of balancers, step by step", 2, 120, ("sglang",)),
    Step("classes", "stops between layers against classes between chunks", 2, 120, ("sglang",)),
    Step("preempt", "what a slice of layer preemption costs", 1, 10, ("sglang",)),
    Step("lengths", "decode step with even and mixed lengths", 1, 110, ("sglang",)),
    Step("late", "1P + 2D, late-bound against shortest queue", 3, 90, ("sglang", "nixl")),
    Step("early", "KV of long prompts, sent while they run", 2, 60, ("sglang", "nixl")),
    Step("draft", "a draft's cost, and its gain where it is right", 3, 60, ("sglang",)),
    Step("experts", "decode step against distinct experts and batch", 1, 60, ("sglang",)),
    Step("deterministic", "replayed streams with deterministic inference", 1, 30, ("sglang",)),
    Step("signature", "what signatures cost, prompts of 1k to 32k", 1, 110, ("sglang", "nixl")),
    Step("outputs", "outputs with and without our patches", 2, 30, ("sglang",)),
)


def named(name: str) -> Step:
    """KeyError: there is no such step."""
    return next(step for step in STEPS if step.name == name)


def table() -> list[str]:
    """Lines for a person."""
    lines = [f"{'step':<10} {'about':>6} {'in all':>7}  shows (parcels it needs)"]
    so_far = 0
    for step in STEPS:
        so_far += step.estimate_s
        needs = ", ".join(step.groups)
        lines.append(
            f"{step.name:<10} {step.estimate_s:>4} s {so_far:>5} s  {step.shows} ({needs})"
        )
    lines.append(
        f"(guesses: {START_S} s for each worker that is started, and each step's own work)"
    )
    return lines
