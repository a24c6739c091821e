"""Run SGLang's own router without importing sglang, and with the run's worker key.

`sglang_router.launch_router` imports sglang when it finds it, only for tracing; that costs 16 s and
527 MiB, and fails on a CPU-only machine. Hidden, the router starts in a second. The key goes in
here, inside the process: on the command line anybody could read it.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

from toolkit.launch.variables import WORKER_KEY_VARIABLE


def main() -> None:
    """`python -m toolkit.launch.sglang_router ARGS` = `sglang_router.launch_router ARGS`."""
    modules: dict[str, Any] = sys.modules
    modules["sglang"] = None  # `import sglang` now raises ImportError, which the router expects
    key = os.environ.pop(WORKER_KEY_VARIABLE, None)
    if key:
        sys.argv += ["--api-key", key]  # the kernel shows the arguments that a process began with
    runpy.run_module("sglang_router.launch_router", run_name="__main__")


if __name__ == "__main__":
    main()
