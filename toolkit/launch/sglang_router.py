"""Run SGLang's own router without importing sglang.

`sglang_router.launch_router` imports sglang when it finds it, only for tracing; that costs 16 s and
527 MiB, and fails on a CPU-only machine. Hidden, the router starts in a second.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any


def main() -> None:
    """`python -m toolkit.launch.sglang_router ARGS` = `sglang_router.launch_router ARGS`."""
    modules: dict[str, Any] = sys.modules
    modules["sglang"] = None  # `import sglang` now raises ImportError, which the router expects
    runpy.run_module("sglang_router.launch_router", run_name="__main__")


if __name__ == "__main__":
    main()
