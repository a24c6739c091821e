"""A prefill rank that must say which requests it has does so without keeping its scheduler waiting.

SGLang's sender of a request's KV is made on the scheduler's thread, and where nobody has said which
DP rank of the prefill worker has the request, it registers there for decode workers to ask: by a
blocking POST with a time-out of 5 s, from each TP rank (`disaggregation/common/conn.py`). Under DP
attention all ranks wait for the slowest in every step. Our router names the rank in the prefill's
body, and our DP controller writes it into the request (`patches.dp.register`): then nobody
registers. What is left is SGLang's own router with SGLang's own methods, and it goes from a thread
here. The rank's number is the one under which the bootstrap server knows it: SGLang says 0 for
every rank where there is no DP attention.
"""

from functools import cache

from patches.base import Hook, Patch, Process
from patches.dp.register import Register
from patches.layers import Original
from patches.sglang_types import Sender


@cache
def _register() -> Register:
    return Register()


def _tell(original: Original[None], sender: Sender) -> None:
    manager = sender.kv_mgr
    if manager.attn_tp_rank or manager.attn_cp_rank or manager.pp_rank:
        return  # the first of its rank says it
    plain = manager.system_dp_size > 1
    rank = manager.system_dp_rank if plain else manager.attn_dp_rank
    _register().tell(sender.bootstrap_server_url, sender.bootstrap_room, rank)


PATCH = Patch(
    name="rank_register",
    why="a scheduler must not wait for an HTTP answer for each of its requests",
    processes=frozenset({Process.SCHEDULER}),
    hooks=(
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVSender._register_prefill_dp_rank",
            _tell,
            ("self",),
        ),
    ),
)
