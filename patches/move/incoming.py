"""A decode worker takes a request over from another one, with tokens that it hears of at the end.

The request comes as a resumed one (`patches.pd.resume`): prompt and output tokens, the last of them
placeholders (`Ticket.late`), since its source decodes on until the rest of the KV is sent. What
they are stands in the request's row of metadata, which comes with the last rows of the KV
(`patches.move.outgoing`). Until then nobody looks at them: the request is in no batch.
"""

from __future__ import annotations

from typing import Any

from patches.base import EITHER, Hook, Patch
from patches.pd.resume import catch_up_grammar, remember_for_penalties

DECODE = "sglang.srt.disaggregation.decode"


def _commit(original: Any, queue: Any, decode_req: Any) -> None:
    req = decode_req.req
    late = getattr(req, "toolkit_late", 0)
    if not late:
        original(queue, decode_req)
        return
    told = queue.metadata_buffers.output_top_logprobs_idx[decode_req.metadata_buffer_index]
    said = told[: late + 1].tolist()
    original(queue, decode_req)
    if req.finished():  # the metadata were another request's
        return
    problem = _settle(queue.scheduler, req, late, said)
    if problem:
        from http import HTTPStatus

        from sglang.srt.disaggregation.utils import prepare_abort

        prepare_abort(req, problem, status_code=HTTPStatus.INTERNAL_SERVER_ERROR)


def _settle(scheduler: Any, req: Any, late: int, said: list[int]) -> str:
    """Put the tokens in place of their placeholders; says what is wrong with them."""
    count, ids = said[0], said[1:]
    if count != late:
        return f"the KV came with {count} tokens, not with {late}"
    vocabulary = scheduler.model_config.vocab_size
    if not all(0 <= token < vocabulary for token in ids):
        return f"a token that came with the KV is outside the vocabulary of {vocabulary}"
    end = len(req.output_ids) - 1  # the last one is the first that was not placed before
    for place, token in zip(range(end - late, end), ids, strict=True):
        req.output_ids[place] = token
    remember_for_penalties(scheduler, req, tuple(req.output_ids[:end]))
    req.toolkit_late = 0
    if not catch_up_grammar(req, tuple(ids)):
        return "the tokens that came with the KV do not follow the request's grammar"
    return ""


PATCH = Patch(
    name="move_incoming",
    why="a request that another decode worker sends is decoded on there until its KV is here",
    processes=EITHER,
    hooks=(
        Hook(
            f"{DECODE}.DecodeTransferQueue._commit_transfer_to_req",
            _commit,
            ("self", "decode_req"),
        ),
    ),
    requires=(
        "sglang.srt.disaggregation.utils.prepare_abort",
        "sglang.srt.disaggregation.utils.MetadataBuffers.get_buf",
    ),
)
