"""From a running deployment to everything that was measured: what takes time in a profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.profile.calibrate import CalibrationRun, CalibrationSettings, Facts, facts
from toolkit.profile.calibration_prompts import CalibrationPrompt, check
from toolkit.profile.shards import Shard, Shards, refuse_other
from toolkit.profile.tap import Tap, worker_urls
from toolkit.profile_folder.errors import ProfileError

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True)
class Measured:
    """A finished calibration. `affinity` per phase is of requests that are fitted only."""

    prompts: list[CalibrationPrompt]
    shard: Shard
    affinity: dict[str, Any]
    layers: list[int]
    facts: Facts
    roles: dict[str, str]


def new_session(api_key: str | None = None) -> aiohttp.ClientSession:
    """A client session for long streams of large frames."""
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        read_bufsize=2**22,
    )


async def measure(
    router: str,
    prompts: list[CalibrationPrompt],
    settings: CalibrationSettings,
    folder: Path,
    progress: Callable[[int, int], None],
    api_key: str | None = None,
) -> Measured:
    """Calibrate against a running deployment; waves already in `folder` are not run again.

    Raises:
        ProfileError: prompts, workers or folder will not do; the message says how to mend it.
    """
    import aiohttp

    check(prompts)
    async with new_session(api_key) as session:
        roles = await worker_urls(session, router)
        async with Tap(session, list(roles)) as tap:
            known = facts(tap.hellos)
            shards = Shards(folder, _meta(known, prompts, settings))
            run = CalibrationRun(session, router, tap, prompts, settings, shards)
            try:
                await run.run(progress)
            except aiohttp.ClientError as error:
                raise ProfileError(f"the router at {router} went away: {error}") from error
    joined = shards.join()
    return Measured(prompts, joined, shards.affinity, shards.layers, known, roles)


def check_before(
    folder: Path, prompts: list[CalibrationPrompt], settings: CalibrationSettings
) -> None:
    """What can be refused before any worker is started.

    Raises:
        ProfileError: prompts that no statistics can be made of, or another unfinished run.
    """
    check(prompts)
    refuse_other(folder, _wanted(prompts, settings))


def _meta(
    known: Facts, prompts: list[CalibrationPrompt], settings: CalibrationSettings
) -> dict[str, Any]:
    return {"fingerprint": known.first.fingerprint, **_wanted(prompts, settings)}


def _wanted(prompts: list[CalibrationPrompt], settings: CalibrationSettings) -> dict[str, Any]:
    import hashlib

    content = "\n".join(f"{p.id}\t{p.text}\t{p.input_ids}" for p in prompts)
    return {
        "prompts": hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest(),
        "settings": asdict(settings),
    }
