"""Run a relocator and its HTTP until told to stop, or until one decision is made."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from toolkit.contract.addresses import LOOPBACK, http_url
from toolkit.placement.online import RelocationSettings
from toolkit.profile.measure import new_session
from toolkit.relocate.app import make
from toolkit.relocate.errors import RelocationError
from toolkit.relocate.relocator import Relocator


async def serve(
    servers: Mapping[str, str],
    settings: RelocationSettings,
    *,
    share: float,
    stall_s: float,
    dry_run: bool,
    port: int,
    once: bool,
    say: Callable[[dict[str, Any]], None],
) -> None:
    """Relocate the experts of the workers at these URLs, each for itself; `say` is told where it
    listens, or what came of the one decision on each.

    Raises:
        RelocationError: `once`, and on some there was no decision; or the port is taken.
    """
    from aiohttp import web

    async with new_session() as session:
        relocators = {
            name: Relocator(session, url, settings, share, stall_s, dry_run)
            for name, url in servers.items()
        }
        running = [asyncio.create_task(each.run()) for each in relocators.values()]
        try:
            if once:
                await _once(relocators, settings.tokens, say)
                return
            runner = web.AppRunner(make(relocators), access_log=None)
            await runner.setup()
            try:
                await _listen(web.TCPSite(runner, LOOPBACK, port), port)
                say({"listening": http_url(LOOPBACK, runner.addresses[0][1])})
                await asyncio.gather(*running)
            finally:
                await runner.cleanup()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _listen(site: Any, port: int) -> None:
    try:
        await site.start()
    except OSError as error:
        raise RelocationError(f"port {port}: {error.strerror}: name another") from error


async def _once(
    relocators: Mapping[str, Relocator], tokens: int, say: Callable[[dict[str, Any]], None]
) -> None:
    problems = []

    async def one(name: str, relocator: Relocator) -> None:
        try:
            say({"server": name} | await _one(relocator, tokens))
        except RelocationError as error:
            problems.append(str(error))

    await asyncio.gather(*(one(name, each) for name, each in relocators.items()))
    if problems:
        raise RelocationError("; ".join(problems))


async def _one(relocator: Relocator, tokens: int) -> dict[str, Any]:
    """When enough was seen. What the server refuses is raised."""
    while relocator.status()["tokens"] < tokens:
        if relocator.state not in ("starting", "watching"):
            raise RelocationError(relocator.state)
        await asyncio.sleep(0.2)
    return await relocator.ask(dry_run=False)
