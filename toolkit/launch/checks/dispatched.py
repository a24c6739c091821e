"""Do DeepEP's low-latency kernels take as many tokens as a decode rank sends in one step?"""

import os
from collections.abc import Mapping
from typing import Any

from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan, WorkerPlan

VARIABLE = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
DEFAULT, MOST = 128, 1024
"""SGLang's (environ.py), and the most that the kernels take (token_dispatcher/deepep.py)."""


def dispatched(plan: Plan, resolved: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """A step's tokens of a rank are its requests, each times those that a draft has verified.
    Buffers are made for so many, and DeepEP ends the worker that sends more. `resolved` is SGLang's
    reading of each worker's flags."""
    problems: dict[str, Problem] = {}
    for worker in plan.workers:
        found = resolved.get(worker.name) or {}
        if worker.role != "prefill" and (problem := _of_worker(worker, found)) is not None:
            problems.setdefault(worker.role, problem)
    return list(problems.values())


def _of_worker(worker: WorkerPlan, resolved: Mapping[str, Any]) -> Problem | None:
    running = resolved.get("max_running_requests")
    if resolved.get("moe_a2a_backend") != "deepep" or resolved.get("deepep_mode") == "normal":
        return None
    if not running:
        return None  # SGLang finds it when it starts
    requests = -(-int(running) // int(resolved.get("dp_size") or 1))
    verified = int(resolved.get("speculative_num_draft_tokens") or 1)
    taken = _taken(worker)
    if taken is None or requests * verified <= taken:
        return None
    what = f"DeepEP takes {taken} tokens of a rank in a step, and {requests} requests"
    if verified > 1:
        what += f" of {verified} verified tokens each"
    what += f" have {requests * verified}: the worker would end with an assertion"
    repair = f"set {VARIABLE} to {requests * verified} in env"
    if requests * verified > MOST:
        repair = f"lower max_running to {MOST // verified} a rank, and set {VARIABLE} to {MOST}"
    return Problem(f"{worker.section}.env.{VARIABLE}", what, repair)


def _taken(worker: WorkerPlan) -> int | None:
    """None: it is no number, which SGLang says itself."""
    said = worker.env.get(VARIABLE, os.environ.get(VARIABLE, str(DEFAULT))).strip()
    return int(said) if said.isdecimal() else None
