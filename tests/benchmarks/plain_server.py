"""A plain SGLang server on the CPU: only what lets it start here, none of our other patches.

`python -m tests.benchmarks.plain_server <SGLang's own flags>`, started as `patches.worker` is, with
`TOOLKIT_PATCHES=1`. Its children import this module first, as they do `patches.worker`.
"""

from __future__ import annotations

from patches import registry, worker

if __name__ in ("__main__", "__mp_main__"):
    registry.ALL = tuple(patch for patch in registry.ALL if patch.name.startswith("cpu_"))
    worker.prepare_process()

if __name__ == "__main__":
    worker.main()
