"""Do prefill and decode agree on the shape of KV? What moves must fit where it lands."""

from typing import Any

from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan, WorkerPlan

MUST_EQUAL = {
    "page_size": "page size",
    "dtype": "dtype",
    "kv_cache_dtype": "KV cache dtype",
    "disaggregation_transfer_backend": "transfer backend",
    "served_model_name": "served model name",
    "speculative_algorithm": "speculative algorithm",
    "speculative_eagle_topk": "number of candidates of a drafted token",
    "speculative_num_steps": "number of drafted tokens",
    "speculative_num_draft_tokens": "number of verified tokens",
    "speculative_draft_model_path": "draft",
}


def agreement(plan: Plan, resolved: dict[str, dict[str, Any]]) -> list[Problem]:
    """Problems between the two roles. `resolved` is SGLang's reading of each worker's flags."""
    if plan.mode != "pd":
        return []
    prefill = next(w for w in plan.workers if w.role == "prefill")
    decode = next(w for w in plan.workers if w.role == "decode")
    left, right = resolved.get(prefill.name, {}), resolved.get(decode.name, {})
    problems = []
    for key, name in MUST_EQUAL.items():
        if key in left and key in right and left[key] != right[key]:
            what = f"{name} differs: prefill {left[key]!r}, decode {right[key]!r}"
            repair = f"set the same --{key.replace('_', '-')} under args of both roles"
            problems.append(Problem("prefill/decode", what, repair))
    problems += _layout(plan, _heads_over(prefill, left), _heads_over(decode, right))
    room, longest = left.get("max_total_tokens"), left.get("context_length")
    if room and longest and room < longest:
        what = f"KV budget {room} is below the context length {longest}: longer prompts get a 400"
        problems.append(Problem("prefill", what, "raise prefill.kv_tokens", fatal=False))
    return problems


def _heads_over(worker: WorkerPlan, resolved: dict[str, Any]) -> int:
    """Over how many ranks one request's KV heads are split: those of context parallelism have all
    heads of their share of a prompt, and send them as one."""
    ranks = worker.tp // worker.dp if worker.dp_attention else worker.tp
    return ranks // max(resolved.get("attn_cp_size") or 1, 1)


def _layout(plan: Plan, left: int, right: int) -> list[Problem]:
    if plan.model.is_mla or left == right:
        return []  # an MLA row is the same on every rank
    what = f"KV heads are split over {left} ranks on prefill and {right} on decode"
    if plan.device == "cpu":
        return [Problem("prefill/decode", what, "use the same tp (over dp_attention) on both")]
    repair = "SGLang then re-slices every transfer (mooncake, nixl); equal splits are faster"
    return [Problem("prefill/decode", what, repair, fatal=max(left, right) % min(left, right) != 0)]
