"""A decode worker takes a request over from another one, with tokens that it hears of later.

The request comes as a resumed one (`patches.pd.resume`): prompt and output tokens, the last of them
placeholders (`Ticket.late`), since its source decodes on until the rest of the KV is sent. So this
worker reserves a place for each of them. Which tokens they are it hears from the router while they
are generated; how many there are, and the last of them, stand in the request's row of metadata,
which comes with the last rows of the KV (`patches.move.row`). Then the places that stayed empty
are given back. Until then nobody looks at any of it: the request is in no batch.
"""

from patches.base import EITHER, Hook, Patch
from patches.kv_row import kv_row, shorten
from patches.layers import Original
from patches.move import row
from patches.pd.resume import catch_up_grammar, remember_for_penalties
from patches.sglang_types import DecodeRequest, Req, Scheduler, TransferQueue
from toolkit.contract.move_orders import Ids

DECODE = "sglang.srt.disaggregation.decode"


def learn(scheduler: Scheduler, told: Ids) -> None:
    """Ids of a request whose KV is coming. The router tells all of them each time, so one that
    comes before its request is passed over."""
    queues = (scheduler.disagg_decode_prealloc_queue, scheduler.disagg_decode_transfer_queue)
    for queue in queues:
        for decode_req in queue.queue:
            req = decode_req.req
            if req.rid == told.rid and told.at == len(req.output_ids) - _late(req):
                req.toolkit_heard = told.ids
                return


def _late(req: Req) -> int:
    return int(getattr(req, "toolkit_late", 0))


def _commit(original: Original[None], queue: TransferQueue, decode_req: DecodeRequest) -> None:
    req = decode_req.req
    late = _late(req)
    if not late:
        original(queue, decode_req)
        return
    outputs, ids = row.read(queue.metadata_buffers, decode_req.metadata_buffer_index)
    original(queue, decode_req)
    if req.finished():  # the metadata were another request's
        return
    problem = _settle(queue.scheduler, req, outputs, ids)
    if problem:
        from http import HTTPStatus

        from sglang.srt.disaggregation.utils import prepare_abort

        prepare_abort(req, problem, status_code=HTTPStatus.INTERNAL_SERVER_ERROR)


def _settle(scheduler: Scheduler, req: Req, outputs: int, last: list[int]) -> str:
    """Put the tokens in place of their placeholders, `outputs` in all, and give back what is left
    over; says what is wrong with them."""
    late, reserved = _late(req), len(req.output_ids) - 1  # the last one came with the KV
    known = reserved - late
    count = outputs - known
    if not 0 <= count <= late:
        return f"the KV came with {count} tokens, and there are places for 0 to {late}"
    ids = _joined(getattr(req, "toolkit_heard", []), last, count)
    if ids is None:
        return "the KV came before the router had told all of its tokens"
    vocabulary = scheduler.model_config.vocab_size
    if not all(0 <= token < vocabulary for token in ids):
        return f"a token that came with the KV is outside the vocabulary of {vocabulary}"
    arrived = req.output_ids[-1]
    del req.output_ids[known:]
    req.output_ids.extend([*ids, arrived])
    remember_for_penalties(scheduler, req, tuple(req.output_ids[:outputs]))
    req.toolkit_late = 0
    _give_back(scheduler, req, reserved, outputs)
    if not catch_up_grammar(req, tuple(ids)):
        return "the tokens that came with the KV do not follow the request's grammar"
    return ""


def _joined(heard: list[int], last: list[int], count: int) -> list[int] | None:
    """The ids of `count` tokens, of which the row had the `last` ones; None where some between are
    missing, or the router told others."""
    before = count - len(last)
    both = heard[max(0, before) : count]
    if before < 0 or len(heard) < before or both != last[: len(both)]:
        return None
    return [*heard[:before], *last]


def _give_back(scheduler: Scheduler, req: Req, reserved: int, outputs: int) -> None:
    """The pages behind the last token's."""
    prompt, allocator = len(req.origin_input_ids), scheduler.token_to_kv_pool_allocator
    size = allocator.page_size
    begin = -(-(prompt + outputs) // size) * size
    end = prompt + reserved
    if begin < end:
        slots = scheduler.req_to_token_pool.req_to_token[kv_row(req), begin:end]
        allocator.free(slots)
    shorten(req, prompt + outputs)


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
