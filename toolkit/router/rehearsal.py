"""`python -m toolkit.router.rehearsal CONFIG.json`: could a router be made of the code and the
configuration that are on the disk now? Says what its processes would have to agree on.

It makes all that a router makes before it serves, and opens no port. Exit codes as those of
`python -m toolkit.router`.
"""

from __future__ import annotations

import asyncio
import os
import sys

WRONG_CONFIGURATION = 2
NICE = 5
"""The router serves meanwhile."""


async def _make(path: str) -> str:
    """What they agree on, in JSON."""
    import msgspec

    from toolkit.router.__main__ import relays_of
    from toolkit.router.app import RouterApp
    from toolkit.router.processes import preloading, supervisor  # noqa: F401
    from toolkit.router.processes.agreement import agreement
    from toolkit.settings.router.load import load_config

    config = load_config(path)
    preloading.everything(config)
    router = RouterApp(config)
    if router.recording is not None:
        router.recording.close()
    return msgspec.json.encode(agreement(config, relays_of(path))).decode()


def main() -> int:
    from toolkit.settings.router.config import ConfigError

    os.nice(NICE)
    try:
        print(asyncio.run(_make(sys.argv[1])))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return WRONG_CONFIGURATION
    return 0


if __name__ == "__main__":
    sys.exit(main())
