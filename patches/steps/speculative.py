"""A worker refuses the speculative decoding that was not tried with the toolkit; see
`toolkit.contract.speculative`."""

from patches.base import refuse
from patches.sglang_types import ServerArgs
from toolkit.contract.speculative import worker_problems


def check_worker(server_args: ServerArgs) -> None:
    """Refuse it in the main process, before it has started anything."""
    if not server_args.speculative_algorithm:
        return
    from patches.check_args import resolved
    from patches.flags import resolve_flags

    resolve_flags(server_args)
    for problem in worker_problems(resolved(server_args)):
        refuse(f"--{problem.where}: {problem.what}; {problem.repair}")
