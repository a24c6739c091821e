"""Run a relocator and its HTTP until told to stop, or until one decision is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from toolkit.placement.online import Settings
from toolkit.profile.measure import new_session
from toolkit.relocate.app import make
from toolkit.relocate.errors import RelocationError
from toolkit.relocate.relocator import Relocator


async def serve(
    url: str,
    settings: Settings,
    *,
    share: float,
    stall_s: float,
    dry_run: bool,
    port: int,
    once: bool,
    say: Callable[[dict[str, Any]], None],
) -> None:
    """Relocate the experts of the worker at `url`; `say` is told where it listens, or what came of
    the one decision.

    Raises:
        RelocationError: `once`, and there was no decision; or the port is taken.
    """
    from aiohttp import web

    async with new_session() as session:
        relocator = Relocator(session, url, settings, share, stall_s, dry_run)
        running = asyncio.create_task(relocator.run())
        try:
            if once:
                say(await _one(relocator, settings.tokens))
                return
            runner = web.AppRunner(make(relocator), access_log=None)
            await runner.setup()
            try:
                await _listen(web.TCPSite(runner, "127.0.0.1", port), port)
                say({"listening": f"http://127.0.0.1:{runner.addresses[0][1]}"})
                await running
            finally:
                await runner.cleanup()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _listen(site: Any, port: int) -> None:
    try:
        await site.start()
    except OSError as error:
        raise RelocationError(f"port {port}: {error.strerror}: name another") from error


async def _one(relocator: Relocator, tokens: int) -> dict[str, Any]:
    """When enough was seen. What the server refuses is raised."""
    while relocator.status()["tokens"] < tokens:
        if relocator.state not in ("starting", "watching"):
            raise RelocationError(relocator.state)
        await asyncio.sleep(0.2)
    return await relocator.ask(dry_run=False)
