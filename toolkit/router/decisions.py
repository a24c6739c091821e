"""The router's decisions on record, where the environment asks for it (`toolkit.decisions`)."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.policies.base import Policy

RECORD_VARIABLE = "TOOLKIT_ROUTER_RECORD"
"""A path: `PATH.prefill.jsonl` and `PATH.decode.jsonl` get the decisions of the two sides with all
that led to them; for tests and questions, as they grow without a bound."""


def on_record(policy: Policy, side: str, seed: int, tau: float | None) -> Policy:
    """The policy, recorded if the variable is set. OSError: the file cannot be written."""
    path = os.environ.get(RECORD_VARIABLE)
    if not path:
        return policy
    from toolkit.decisions import recorded

    return recorded(policy, Path(f"{path}.{side}.jsonl"), seed, tau)
