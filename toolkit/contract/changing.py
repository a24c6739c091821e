"""What may not change while a worker runs: its role, and the ranks that its experts lie on.

Router, launcher and the patches of a prefill worker take a worker's role as it was when it started;
placements, centroids and DP ranks take the ranks so. Checked against SGLang 0.5.21 to 0.5.23 by
reading; both the launcher and the worker itself ask.
"""

from collections.abc import Mapping
from typing import Any

from toolkit.errors import Problem


def worker_problems(resolved: Mapping[str, Any]) -> list[Problem]:
    """Problems of one worker by its `patches.check_args` values; `where` is a flag."""
    problems = []
    if resolved.get("enable_pd_role_switch"):
        what = "the router would go on sending prompts to what has become a decode worker"
        problems.append(Problem("enable-pd-role-switch", what, "leave it out"))
    if resolved.get("elastic_ep_backend"):
        what = "ranks that go or come while it serves were not tried with the toolkit's placement, "
        what += "DP ranks and steps"
        problems.append(Problem("elastic-ep-backend", what, "leave it out"))
    return problems
