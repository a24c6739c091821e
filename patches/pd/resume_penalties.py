"""A resumed generation is penalised for the tokens that it brought along.

SGLang keeps the sums behind `frequency_penalty`, `presence_penalty`, `repetition_penalty` and
`min_new_tokens` in the batch's penalizers and starts them at zero (`srt/sampling/penaltylib/`).
A request that `patches.pd.resume` restored brings a history along (`toolkit_penalty_history`);
without it the first token on the new worker would already differ from the undisturbed run.

With the overlap schedule each step counts the last token that the scheduler knows of
(`ScheduleBatch.cumulate_penalty_output_tokens`). In a row of steps that is the one before the last,
since the last step's result is not there yet, and the first token is counted twice. But after a
step that was another batch's (a new request has come) it is the last one, and the one before is
never counted: what a request gets would hang on when others come, and could not be repeated on
another worker. So here it is always the token that a row of steps would count.
"""

from collections.abc import Callable
from typing import Any

from patches.base import EITHER, Hook, Patch
from patches.sglang_types import Batch, Req

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


def _cumulate_in_order(original: Any, batch: Batch) -> None:
    if not batch.enable_overlap:
        original(batch)
        return
    import torch
    from sglang.srt.runtime_context import get_disagg

    late = get_disagg().disaggregation_mode == "decode"
    tokens = torch.tensor(
        [
            _token_to_count(req, length, late)
            # Rows of a beam search follow those of the requests.
            for req, length in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=False)
        ],
        dtype=torch.int64,
        pin_memory=torch.device(batch.device).type == "cuda",
    )
    batch.sampling_info.penalizer_orchestrator.cumulate_output_tokens(
        tokens.to(batch.device, non_blocking=True)
    )


def _token_to_count(req: Req, length: int, late: bool) -> int:
    """What the next decode step counts of a request of which `length` tokens have their KV: the
    prompt and its outputs but the last. At its first step that is the first output token where
    that came `late`, with the KV; else the prompt's last."""
    number = min(length - len(req.origin_input_ids), len(req.output_ids)) - 1
    if number >= 0:
        return int(req.output_ids[number])
    return int(req.output_ids[0] if late and req.output_ids else req.origin_input_ids[-1])


PATCH = Patch(
    name="resume_penalties",
    why="penalties of a resumed generation must count what was generated before",
    processes=EITHER,
    hooks=(
        Hook(f"{LIBRARY}.orchestrator._BatchedPenalizer.prepare", _prepare_with_history, ("self",)),
        Hook(
            "sglang.srt.managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens",
            _cumulate_in_order,
            ("self",),
        ),
    ),
    requires=(
        f"{LIBRARY}.frequency_penalty.BatchedFrequencyPenalizer",
        f"{LIBRARY}.presence_penalty.BatchedPresencePenalizer",
        f"{LIBRARY}.repetition_penalty.BatchedRepetitionPenalizer",
        f"{LIBRARY}.min_new_tokens.BatchedMinNewTokensPenalizer",
        "sglang.srt.runtime_context.get_disagg",
    ),
)
