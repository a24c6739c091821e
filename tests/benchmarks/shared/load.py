"""A load on a router, made by a process of its own."""

import asyncio
import json
import subprocess
import sys
from typing import Any

from tests.preloading import ROOT


async def load(
    port: int, concurrency: int, requests: int, tokens: int, quiet: bool = False, words: int = 40
) -> dict[str, Any]:
    """One round of the load generator, with prompts of so many words; RuntimeError when anything
    was lost."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.standin.loadgen",
        "--port",
        str(port),
        "--concurrency",
        str(concurrency),
        "--requests",
        str(requests),
        "--tokens",
        str(tokens),
        "--words",
        str(words),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
    )
    out, _ = await process.communicate()
    result: dict[str, Any] = json.loads(out)
    if result["errors"] or result["requests"] != requests or not result["chunks"]:
        raise RuntimeError(f"lost requests: { ({**result, 'first_ms': None}) }")
    return result
