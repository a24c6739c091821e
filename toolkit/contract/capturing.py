"""Does SGLang's routed-experts capturer keep the right experts? Settings under which it does not.

Signatures (`router.profile`) and profiles (`capture_experts`) both read what it keeps. Judged by
what SGLang made of the flags: the launcher asks before a start, and the worker itself
(`patches.experts.signature.check_worker`), which alone knows its GPU. Checked against SGLang
0.5.21; files are those of `sglang/srt`.
"""

from collections.abc import Mapping
from typing import Any

from toolkit.errors import Problem

SCATTERED = ("deepep", "deepep_v2")
"""--moe-a2a-backend: those under which a rank's tokens lie at the buffer's beginning
(state_capturer/routed_experts.py)."""
BYPASS = ("triton_kernel", "flashinfer_trtllm", "flashinfer_mxfp4", "experimental_sgl_trtllm")
"""--moe-runner-backend: kernels that may choose the experts themselves (layers/moe/topk.py)."""
_WITHOUT = "brings KV back and does not say which experts it was computed with"
STORES = {
    "enable_lmcache": _WITHOUT,
    "enable_flexkv": _WITHOUT,
    "enable_unified_cache_external_linker": _WITHOUT,
    "radix_cache_backend": "may bring KV back that was computed elsewhere",
}
"""mem_cache/registry.py: every cache that fills slots otherwise than HiCacheController.load."""

SPLIT = {
    "pp_size": "its own stage's layers",
    "attn_cp_size": "its own share of a prompt",
    "enable_prefill_cp": "its own share of a prompt",
}
"""Field -> what a rank sees. state_capturer/routed_experts.py puts neither together."""
GATHERED = ("none", *SCATTERED)
"""--moe-a2a-backend: it puts the ranks' tokens together for these only."""

_OR = "; or leave out router.profile and capture_experts"


def worker_problems(resolved: Mapping[str, Any]) -> list[Problem]:
    """Problems of one worker by its `patches.check_args` values; `where` is a flag, a note is not
    fatal. None where nothing is captured, or where SGLang refused the flags."""
    if not resolved.get("enable_return_routed_experts"):
        return []
    problems = _ranks(resolved)
    if resolved["enable_two_batch_overlap"] and resolved["moe_a2a_backend"] not in SCATTERED:
        # `patches.experts.halves` keeps the halves apart where each has a rank's own tokens.
        what = "captured experts would be wrong: each half of a batch has the tokens of all ranks"
        repair = f"use --moe-a2a-backend {SCATTERED[0]}, or leave it out{_OR}"
        problems.append(Problem("enable-two-batch-overlap", what, repair))
    mode = resolved["disaggregation_mode"]
    if mode != "decode":
        problems += _prompts(resolved)
    if resolved["only_sliding_window"] and (mode != "prefill" or resolved["disable_radix_cache"]):
        # managers/schedule_batch.py, maybe_evict_swa: the only pool there is.
        what = "captured experts would be wrong: every layer of this model has a sliding window, "
        what += "so that a slot gets another token before its request has ended"
        problems.append(Problem("disable-hybrid-swa-memory", what, f"set it to true{_OR}"))
    if mode != "decode" and resolved.get("enable_decoder_swa_bounded_replay"):
        # On by itself for DeepSeek-V4.1 from SGLang 0.5.23 on.
        what = "captured experts would be wrong: the last layers see the end of a prompt only"
        repair = f"set no-enable-decoder-swa-bounded-replay to true{_OR}"
        problems.append(Problem("enable-decoder-swa-bounded-replay", what, repair))
    runner = resolved["moe_runner_backend"]
    if runner in BYPASS:
        what = f"{runner} may choose experts inside its kernel: then none are captured, all "
        what += "requests go by load, and `toolkit profile` refuses the workers"
        repair = "watch the router's fallbacks, or use --moe-runner-backend triton"
        problems.append(Problem("moe-runner-backend", what, repair, fatal=False))
    return problems


def _ranks(resolved: Mapping[str, Any]) -> list[Problem]:
    """What goes wrong where layers or tokens are of several ranks."""
    wrong = "captured experts would be wrong"
    problems = [
        Problem(field.replace("_", "-"), f"{wrong}: a rank sees {seen} only", f"use tp{_OR}")
        for field, seen in SPLIT.items()
        if resolved.get(field) is True or (resolved.get(field) or 0) > 1
    ]
    backend = resolved["moe_a2a_backend"]
    if backend not in GATHERED and resolved["tp_size"] > 1:
        what = f"{wrong}: under {backend} SGLang mixes up the tokens of several ranks"
        problems.append(Problem("moe-a2a-backend", what, f"use {SCATTERED[0]}{_OR}"))
    return problems


def _prompts(resolved: Mapping[str, Any]) -> list[Problem]:
    """What goes wrong in forwards of prompts only."""
    repair = (
        f"use enable-hierarchical-cache, whose returning KV is recognised, or leave it out{_OR}"
    )
    problems = [
        Problem(field.replace("_", "-"), f"captured experts would be wrong: it {why}", repair)
        for field, why in STORES.items()
        if resolved.get(field)
    ]
    if resolved["chunked_prefill_size"] <= 0:
        # state_capturer/routed_experts.py: the buffer has the rows of a chunk or of a decode batch.
        what = "chunked prefill is off: a prompt longer than the capturer's buffer ends the worker"
        repair = f"set it to a number of tokens, where the model allows it{_OR}"
        problems.append(Problem("chunked-prefill-size", what, repair))
    if (
        resolved["enable_dp_attention"]
        and resolved["moe_a2a_backend"] not in SCATTERED
        and resolved["prefill_cuda_graph"] not in (None, "disabled")
    ):
        # layers/dp_attention.py, get_dp_local_slice_cpu: a rank's share is looked for by the batch
        # size of the last *decode* graph, which a prefill worker does not have.
        what = "under DP attention without DeepEP prefill CUDA graphs end the worker, or mix up the"
        what += " ranks' captured experts"
        repair = f"set it to true, and no other prefill backend for CUDA graphs{_OR}"
        problems.append(Problem("disable-prefill-cuda-graph", what, repair))
    return problems
