"""A cost model of real CPU workers that share cores: wall time of their steps, from runs of their
own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.bench.errors import BenchError
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost
from toolkit.simulate.fleet import Machine

if TYPE_CHECKING:
    import numpy as np

    from toolkit.profile.tap import Heard

LEAST_STEPS = 100


@dataclass
class Fitted:
    """The model, with what decode loses beside prefill; the mean relative errors of every fourth
    step, by a fit of the others."""

    cost: Linear
    errors: dict[str, float]


def fitted(runs: Sequence[Heard], transfer_s: float) -> Fitted:
    """From what was heard of one prefill worker and one decode server with DP attention.

    A decode step of the group takes base + per_request * n + per_kv_token * KV of the heaviest
    rank, + per_join for each request that begins, + a share of the time in which a prefill pass
    ran too: one minus the speed beside it. Least squares without weights, so that the sum over all
    steps is what it was. Prefill passes are nearly never alone, so theirs are as beside decode.
    BenchError: too few steps.
    """
    import numpy as np

    steps, passes = (np.concatenate(parts) for parts in zip(*map(_rows, runs), strict=True))
    _enough(steps, passes)
    step, step_error = _least_squares(steps)
    prompt, prompt_error = _least_squares(passes)
    base, per_request, per_kv_token, per_join, beside = step
    cost = Linear(
        decode=Decode(
            base=base, per_request=per_request, per_kv_token=per_kv_token, per_join=per_join
        ),
        prefill=Prefill(base=prompt[0], per_token=prompt[1]),
        transfer=TransferCost(base=transfer_s),
        machine=Machine(decode_beside_prefill=1 - min(beside, 0.95)),
    )
    return Fitted(cost, {"decode": step_error, "prefill": prompt_error})


def fitted_plain(runs: Sequence[Heard]) -> Fitted:
    """From what was heard of workers that prefill and decode both, each on its own: a decode step
    of a rank takes base + per_request * n + per_kv_token * KV, a pass base + per_token * new
    tokens, fitted as `fitted` does. BenchError: too few steps."""
    import numpy as np

    steps, passes = [], []
    for heard in runs:
        at = {name: i for i, name in enumerate(heard.columns)}
        for blocks in heard.steps.values():
            rows = np.concatenate(blocks)
            told = np.column_stack([rows[:, at["seconds"]], np.ones(len(rows))])
            decode = rows[:, at["decode"]] == 1
            batch = rows[:, [at["requests"], at["kv_tokens"]]]
            steps.append(np.column_stack([told, batch])[decode])
            passes.append(np.column_stack([told, rows[:, at["new_tokens"]]])[~decode])
    _enough(np.concatenate(steps), np.concatenate(passes))
    step, step_error = _least_squares(np.concatenate(steps))
    prompt, prompt_error = _least_squares(np.concatenate(passes))
    cost = Linear(
        decode=Decode(base=step[0], per_request=step[1], per_kv_token=step[2]),
        prefill=Prefill(base=prompt[0], per_token=prompt[1]),
    )
    return Fitted(cost, {"decode": step_error, "prefill": prompt_error})


def _enough(steps: np.ndarray, passes: np.ndarray) -> None:
    if min(len(steps), len(passes)) < LEAST_STEPS:
        raise BenchError(f"only {len(steps)} decode and {len(passes)} prefill steps")


def _least_squares(rows: np.ndarray) -> tuple[list[float], float]:
    """Coefficients of all columns but the first, which is told by them; the held-out error."""
    import numpy as np
    from scipy.optimize import nnls

    def solve(part: np.ndarray) -> np.ndarray:
        scale = np.abs(part[:, 1:]).max(axis=0)
        scale[scale == 0] = 1.0
        return nnls(part[:, 1:] / scale, part[:, 0])[0] / scale

    held = np.arange(len(rows)) % 4 == 3
    told = rows[held, 1:] @ solve(rows[~held])
    error = float(np.mean(np.abs(told / rows[held, 0] - 1)))
    return solve(rows).tolist(), error


def _rows(heard: Heard) -> tuple[np.ndarray, np.ndarray]:
    """Decode steps of the group: seconds, 1, requests and KV tokens of the heaviest rank, requests
    that began, seconds beside a prefill pass. Prefill passes: seconds, 1, new tokens."""
    import numpy as np

    at = {name: i for i, name in enumerate(heard.columns)}
    ranks, passes = [], []
    for blocks in heard.steps.values():
        rows = np.concatenate(blocks)
        decode = rows[:, at["decode"]] == 1
        if decode.any():
            ranks.append(rows[decode][:, [at[name] for name in STEP]])
        passes.append(rows[~decode][:, [at["end"], at["seconds"], at["new_tokens"]]])
    prompts = np.concatenate(passes)
    prompts = prompts[np.argsort(prompts[:, 0])]
    group = _together(ranks)
    end, seconds = group[:, 0], group[:, 1]
    steps = np.column_stack(
        [
            seconds,
            np.ones(len(group)),
            group[:, 2:],
            _began(heard, end),
            _overlap(end - seconds, end, prompts[:, 0] - prompts[:, 1], prompts[:, 0]),
        ]
    )
    return steps, np.column_stack([prompts[:, 1], np.ones(len(prompts)), prompts[:, 2]])


STEP = ("end", "seconds", "requests", "kv_tokens")


def _together(ranks: Sequence[np.ndarray]) -> np.ndarray:
    """Steps of a group from those of its ranks, both as STEP: what ended at once is one step, with
    the most of each. A rank without requests has no row."""
    import numpy as np

    rows = np.concatenate([np.column_stack([r, np.full(len(r), i)]) for i, r in enumerate(ranks)])
    found: list[np.ndarray] = []
    members: set[float] = set()
    for row in rows[np.argsort(rows[:, 0])]:
        rank = row[-1]
        if found and rank not in members and row[0] - found[-1][0] < 0.5 * row[1]:
            found[-1] = np.maximum(found[-1], row[:-1])
            members.add(rank)
        else:
            found.append(row[:-1])
            members = {rank}
    return np.stack(found)


def _began(heard: Heard, ends: np.ndarray) -> np.ndarray:
    """How many requests began with each step that ended at `ends`."""
    import numpy as np

    at = {name: i for i, name in enumerate(heard.finished_columns)}
    rows = np.concatenate([block for blocks in heard.finished.values() for block in blocks])
    first = rows[:, at["end"]] - rows[:, at["seconds"]]
    step = np.clip(np.searchsorted(ends, first - 1e-6), 0, len(ends) - 1)
    return np.bincount(step, minlength=len(ends)).astype(float)


def _overlap(
    since: np.ndarray, until: np.ndarray, begins: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Seconds of each [since, until] in the intervals, which are in order and disjoint."""
    import numpy as np

    before = np.concatenate([[0.0], np.cumsum(ends - begins)])

    def covered(at: np.ndarray) -> np.ndarray:
        place = np.searchsorted(begins, at, side="right")
        last = np.maximum(place - 1, 0)
        part = np.minimum(at, ends[last]) - begins[last]
        return np.where(place > 0, before[last] + part, 0.0)

    return covered(until) - covered(since)
