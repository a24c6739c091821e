"""A worker whose role or ranks may change while it serves does not start; see
`toolkit.contract.changing`."""

from patches.base import refuse
from patches.flags import resolved_view
from patches.sglang_types import ServerArgs
from toolkit.contract.changing import worker_problems

ASKED = ("enable_pd_role_switch", "elastic_ep_backend")


def check_worker(server_args: ServerArgs) -> None:
    """Refuse it in the main process, before it has started anything. No release has both flags."""
    values = {name: getattr(resolved_view(server_args), name, None) for name in ASKED}
    for problem in worker_problems(values):
        refuse(f"--{problem.where}: {problem.what}; {problem.repair}")
