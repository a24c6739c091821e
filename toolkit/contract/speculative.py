"""Speculative decoding: which of it is taken, and why the rest is refused.

Judged by what SGLang made of the flags: the launcher asks before a start, and the worker itself
(`patches.steps.speculative`). Checked against SGLang 0.5.21; files are those of `sglang/srt`.
"""

from collections.abc import Mapping
from typing import Any

from toolkit.errors import Problem

TRIED = ("EAGLE", "EAGLE3")
"""As SGLang resolves them: NEXTN is EAGLE."""
FLAG = "speculative-algorithm"
FIELDS = (
    "speculative_algorithm",
    "speculative_eagle_topk",
    "speculative_num_steps",
    "speculative_num_draft_tokens",
    "speculative_draft_model_path",
)
"""What both roles must have alike. A prefill worker sends its draft's KV and hidden state along
with a request, and computes where they belong from the sizes of its own
(disaggregation/mooncake/conn.py, send_aux)."""
_DECODE = {
    # disaggregation/decode_schedule_batch_mixin.py: build_disagg_draft_input returns None, and
    # managers/overlap_utils.py reads its shape.
    "NGRAM": "SGLang's decode workers die of it at their first request",
    "STANDALONE": "SGLang's decode workers have no state of the draft to begin with",
}


def worker_problems(resolved: Mapping[str, Any]) -> list[Problem]:
    """Problems of one worker by its `patches.check_args` values; `where` is a flag."""
    algorithm = resolved.get("speculative_algorithm")
    if not algorithm:
        return []
    apart = resolved["disaggregation_mode"] not in (None, "null")
    if algorithm not in TRIED:
        why = "it was not tried with the toolkit"
        if apart:
            why = _DECODE.get(algorithm, why)
        return [Problem(FLAG, f"{algorithm}: {why}", "use EAGLE, or leave it out")]
    if resolved.get("ep_dispatch_algorithm") and resolved.get("moe_a2a_backend") in (None, "none"):
        # `patches.relocate.dispatch_info`: the layers of a draft have the numbers of the model's.
        what = "experts that are placed were not tried with a draft without an all-to-all backend: "
        what += "tokens would go to the experts of other slots"
        return [Problem("ep-dispatch-algorithm", what, "leave out one of the two")]
    if (resolved.get("speculative_eagle_topk") or 1) == 1:
        return []
    where, repair = "speculative-eagle-topk", "set it to 1"
    if apart:
        what = "a tree of drafted tokens was not tried with prefill and decode apart"
        return [Problem(where, what, repair)]
    if resolved.get("enable_return_routed_experts"):
        # speculative/spec_utils.py, move_accept_tokens_to_target_kvcache: the accepted tokens' KV
        # goes to other slots, what the capturer keeps of them stays.
        what = "captured experts would be wrong: accepted tokens of a tree change their KV slots"
        return [Problem(where, what, f"{repair}, or leave out router.profile and capture_experts")]
    return []
