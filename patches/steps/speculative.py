"""A worker with speculative decoding is refused: `toolkit.contract.speculative` says why."""

from typing import Any

from patches.base import refuse
from toolkit.contract.speculative import worker_problems


def check_worker(server_args: Any) -> None:
    """Refuse it in the main process, before it has started anything."""
    for problem in worker_problems({"speculative_algorithm": server_args.speculative_algorithm}):
        refuse(f"--{problem.where}: {problem.what}; {problem.repair}")
