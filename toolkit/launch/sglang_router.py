"""Run SGLang's own router without importing sglang.

`sglang_router.launch_router` imports sglang when it finds it, only for tracing; that costs 16 s and
527 MiB, and fails on a CPU-only machine. Hidden, the router starts in a second.

Its `--api-key` would show the key in `ps`. So the name of the variable that holds it is given here,
and the key is set inside the process. With it the router asks clients for the key on everything but
health and model information (and sends it to workers as well).
"""

import os
import sys
from typing import Any

KEY_ENV = "--toolkit-api-key-env"


def main() -> None:
    """`python -m toolkit.launch.sglang_router [--toolkit-api-key-env NAME] ARGS` =
    `sglang_router.launch_router ARGS`, with the key in the variable NAME. Exit status 2: none."""
    modules: dict[str, Any] = sys.modules
    modules["sglang"] = None  # `import sglang` now raises ImportError, which the router expects
    argv, key = sys.argv[1:], None
    if argv[:1] == [KEY_ENV]:
        key, argv = os.environ.pop(argv[1], ""), argv[2:]
        if not key:
            print("toolkit: the variable of router.api_key_env is empty", file=sys.stderr)
            sys.exit(2)
    from sglang_router import launch_router

    arguments = launch_router.parse_router_args(argv)
    arguments.api_key = key
    launch_router.launch_router(arguments)


if __name__ == "__main__":
    main()
