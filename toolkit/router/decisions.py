"""The router's decisions on record, where the environment asks for it (`toolkit.decide.record`)."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.contract.variables import ROUTER_RECORD_VARIABLE
from toolkit.policies.base import Policy


def on_record(policy: Policy, side: str, seed: int, tau: float | None) -> Policy:
    """The policy, recorded if the variable is set. OSError: the file cannot be written."""
    path = os.environ.get(ROUTER_RECORD_VARIABLE)
    if not path:
        return policy
    from toolkit.decide.record import recorded

    return recorded(policy, Path(f"{path}.{side}.jsonl"), seed, tau)
