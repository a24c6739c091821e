"""Let a prompt in that fills a decode worker's KV pool.

SGLang lets a request in, or back in after it was retracted, when its KV and
`--num-reserved-decode-tokens` (512) more are free, and looks no further than the first that does
not fit. Who needs more than the whole pool with that reserve is accepted, waits for ever, and
everybody behind it too. Here nobody needs more than the pool: such a request waits until it has the
worker to itself.
"""

from patches.base import EITHER, Hook, Patch, Variant
from patches.layers import Original
from patches.sglang_types import PreallocQueue, Req

QUEUE = "sglang.srt.disaggregation.decode.DecodePreallocQueue"


def _to_get_in(
    original: Original[int],
    queue: PreallocQueue,
    req: Req,
    allocated: int,
    prefix: int,
    retractable: int,
) -> int:
    """KV tokens that `req` needs besides its cached `prefix`."""
    return _within(queue, original(queue, req, allocated, prefix, retractable), prefix)


def _to_come_back(
    original: Original[tuple[int, int]], queue: PreallocQueue, req: Req
) -> tuple[int, int]:
    """Of all layers, and of those with a sliding window."""
    tokens, window = original(queue, req)
    return _within(queue, tokens), window


def _within(queue: PreallocQueue, tokens: int, prefix: int = 0) -> int:
    if queue.scheduler.enable_hisparse:  # its budget is another pool's
        return tokens
    return min(tokens, int(queue.max_total_num_tokens) - prefix)


def _let_in(
    original: Original[object], queue: PreallocQueue, *args: object, **kwargs: object
) -> object:
    """Up to 0.5.20 SGLang adds the reserve and the answer's length where nothing can be hooked:
    while it looks, both are no more than the pool has left beside the longest prompt that waits."""
    if queue.scheduler.enable_hisparse:
        return original(queue, *args, **kwargs)
    pool, reserve = int(queue.max_total_num_tokens), queue.num_reserved_decode_tokens
    longest = max((_length(each.req) for each in queue.queue), default=0)
    wanted = {each.req: each.req.sampling_params.max_new_tokens for each in queue.queue}
    try:
        queue.num_reserved_decode_tokens = max(0, min(reserve, pool - longest))
        for req, most in wanted.items():
            req.sampling_params.max_new_tokens = max(0, min(most, pool - _length(req)))
        return original(queue, *args, **kwargs)
    finally:
        queue.num_reserved_decode_tokens = reserve
        for req, most in wanted.items():
            req.sampling_params.max_new_tokens = most


def _length(req: Req) -> int:
    return len(req.origin_input_ids) + max(len(req.output_ids) - 1, 0)


PATCH = Patch(
    name="kv_reserve",
    why="a prompt nearly as long as the KV pool blocks a decode worker for ever",
    processes=EITHER,
    hooks=(Hook(f"{QUEUE}._prealloc_required_tokens", _to_come_back, ("self", "req")),),
    variants=(
        Variant(
            "from 0.5.21",
            hooks=(
                Hook(
                    f"{QUEUE}._required_admission_tokens",
                    _to_get_in,
                    ("self", "req", "allocated_tokens", "prefix_len", "retractable_tokens"),
                ),
            ),
        ),
        Variant("to 0.5.20", hooks=(Hook(f"{QUEUE}.pop_preallocated", _let_in, ("self",)),)),
    ),
)
