"""A plain SGLang server on the CPU: only what lets it start here, none of our other patches.

`python -m tests.benchmarks.plain_server <SGLang's own flags>`, started as `patches.worker` is, with
`TOOLKIT_PATCHES=1`. Its children import this module first, as they do `patches.worker`.
"""

from patches import registry, worker
from patches.base import Patch, Process


def only_for_the_cpu(process: Process, *, on_cpu: bool) -> tuple[Patch, ...]:
    """In place of `registry.patches_for`."""
    chosen = _patches_for(process, on_cpu=on_cpu)
    return tuple(patch for patch in chosen if patch.name.startswith("cpu_"))


_patches_for = registry.patches_for

if __name__ in ("__main__", "__mp_main__"):
    registry.patches_for = only_for_the_cpu
    worker.prepare_process()

if __name__ == "__main__":
    worker.main()
