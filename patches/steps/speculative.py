"""A worker with speculative decoding is refused: `toolkit.contract.speculative` says why."""

from patches.base import refuse
from patches.sglang_types import ServerArgs
from toolkit.contract.speculative import worker_problems


def check_worker(server_args: ServerArgs) -> None:
    """Refuse it in the main process, before it has started anything."""
    for problem in worker_problems({"speculative_algorithm": server_args.speculative_algorithm}):
        refuse(f"--{problem.where}: {problem.what}; {problem.repair}")
