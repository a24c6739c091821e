"""A resumed generation is penalised for the tokens that it brought along.

SGLang keeps the sums behind `frequency_penalty`, `presence_penalty`, `repetition_penalty` and
`min_new_tokens` in the batch's penalizers and starts them at zero (`srt/sampling/penaltylib/`).
A request that `patches.resume` restored brings a history along (`toolkit_penalty_history`); without
it the first token on the new worker would already differ from the undisturbed run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches.base import EITHER, Hook, Patch

LIBRARY = "sglang.srt.sampling.penaltylib"


def _add_frequency(penalizer: Any, row: int, ids: Any) -> None:
    penalty = penalizer.frequency_penalties[row].expand(ids.shape[0])
    penalizer.cumulated_frequency_penalties[row].scatter_add_(0, ids, penalty)


def _add_presence(penalizer: Any, row: int, ids: Any) -> None:
    penalizer.cumulated_presence_penalties[row, ids] = penalizer.presence_penalties[row]


def _add_repetition(penalizer: Any, row: int, ids: Any) -> None:
    penalizer.cumulated_repetition_penalties[row, ids] = penalizer.repetition_penalties[row]


def _add_length(penalizer: Any, row: int, ids: Any) -> None:
    penalizer.len_output_tokens[row] += ids.shape[0]


CATCH_UP: dict[str, Callable[[Any, int, Any], None]] = {
    "BatchedFrequencyPenalizer": _add_frequency,
    "BatchedPresencePenalizer": _add_presence,
    "BatchedRepetitionPenalizer": _add_repetition,
    "BatchedMinNewTokensPenalizer": _add_length,
}


def _prepare_with_history(original: Any, penalizer: Any) -> None:
    fresh = not penalizer.is_prepared()
    original(penalizer)
    catch_up = CATCH_UP.get(type(penalizer).__name__)
    if not fresh or catch_up is None:
        return
    import torch

    for row, req in enumerate(penalizer.orchestrator.reqs()):
        ids = getattr(req, "toolkit_penalty_history", None)
        if ids:
            catch_up(penalizer, row, torch.tensor(ids, device=penalizer.orchestrator.device))


PATCH = Patch(
    name="resume_penalties",
    why="penalties of a resumed generation must count what was generated before",
    processes=EITHER,
    hooks=(
        Hook(f"{LIBRARY}.orchestrator._BatchedPenalizer.prepare", _prepare_with_history, ("self",)),
    ),
    requires=(
        f"{LIBRARY}.frequency_penalty.BatchedFrequencyPenalizer",
        f"{LIBRARY}.presence_penalty.BatchedPresencePenalizer",
        f"{LIBRARY}.repetition_penalty.BatchedRepetitionPenalizer",
        f"{LIBRARY}.min_new_tokens.BatchedMinNewTokensPenalizer",
    ),
)
