"""Are tokens and experts counted right, and roles and ranks as they seem, and do workers ask for
their key? Asked of a whole plan."""

from collections.abc import Mapping
from typing import Any

from toolkit.contract import capturing, changing, speculative, unguarded
from toolkit.launch.checks.roles import of_roles
from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan


def counted(plan: Plan, resolved: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Of every role: does SGLang's routed-experts capturer keep the right experts, were its drafts
    tried, do its role and ranks stay, and does nothing answer without a key? `resolved` is SGLang's
    reading of each worker's flags."""
    return [
        *of_roles(plan, resolved, capturing.worker_problems),
        *of_roles(plan, resolved, speculative.worker_problems),
        *of_roles(plan, resolved, changing.worker_problems),
        *(of_roles(plan, resolved, unguarded.worker_problems) if plan.keyed else ()),
    ]
