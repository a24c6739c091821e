"""What is being measured: a router (or a plain server), seen through its HTTP interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.bench.errors import BenchError
from toolkit.launch.keys import headers_at

if TYPE_CHECKING:
    import aiohttp

SPARE = 32
"""Tokens of the context that are left free, for a chat template."""
PROMPT_TOKENS = 32
"""Output tokens of a prompt when neither --max-tokens nor its row says them."""


@dataclass(frozen=True, slots=True)
class Target:
    """Address and model of the thing under load.

    `context` is the model's context in tokens, `model_path` the folder of its tokenizer; both
    None when the server does not say. `others`: routers over the same workers as that at `url`;
    requests go to all of them in turn.
    """

    url: str
    model: str
    context: int | None
    model_path: Path | None
    others: tuple[str, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        """Where requests go."""
        return (self.url, *self.others)


async def discover(session: aiohttp.ClientSession, url: str, others: Sequence[str] = ()) -> Target:
    """Ask the server what it serves. Raises BenchError when nobody answers there."""
    import aiohttp

    try:
        models = await get_json(session, url + "/v1/models")
        info = await _model_info(session, url)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise BenchError(
            f"nothing answers at {url} ({error}); start one with `toolkit launch FILE.yaml`, "
            "or let the benchmark do it with --deployment FILE.yaml"
        ) from error
    if not models or not models.get("data"):
        raise BenchError(f"{url}/v1/models names no model; is it a router or an SGLang server?")
    first = models["data"][0]
    folder = (info or {}).get("tokenizer_path") or (info or {}).get("model_path")
    path = Path(folder) if folder and Path(folder).is_dir() else None
    return Target(url, first["id"], first.get("max_model_len"), path, tuple(others))


async def _model_info(session: aiohttp.ClientSession, url: str) -> Any:
    """What a server says of its model. This project's router tells folders to its admin only: it is
    asked at its admin port, where one can be reached from here."""
    import aiohttp

    state = await get_json(session, url + "/workers")
    at = state.get("admin") if isinstance(state, dict) else None
    if at:
        try:
            return await get_json(session, at + "/get_model_info")
        except (aiohttp.ClientError, OSError):  # it listens on the router's own host alone
            pass
    return await get_json(session, url + "/get_model_info")


async def get_json(session: aiohttp.ClientSession, url: str) -> Any:
    """The JSON body of a GET, or None when the answer is not 200."""
    async with session.get(url) as response:
        return await response.json(content_type=None) if response.status == 200 else None


async def set_policy(session: aiohttp.ClientSession, url: str, body: Mapping[str, object]) -> None:
    """Switch the router's policies at run time (`POST /admin/policy`): at its admin port, which it
    names, or with the admin key that the session has for its public port."""
    import aiohttp

    state = await get_json(session, url + "/workers")
    at = (state or {}).get("admin") or url
    try:
        order = await session.post(at + "/admin/policy", json=body)
    except aiohttp.ClientConnectionError as error:
        raise BenchError(
            f"nobody takes orders at {at}, the router's admin port ({error}): run this on its host"
        ) from error
    async with order as response:
        if response.status == 403:
            raise BenchError(
                f"the router's policies are switched by its admin only ({at}): give the admin key "
                "with --api-key-env"
            )
        if response.status != 200:
            raise BenchError(
                f"the router refused the policy {body}: HTTP {response.status} "
                f"{(await response.text())[:300]} (--compare needs this project's router)"
            )


async def switch(
    session: aiohttp.ClientSession, target: Target, body: Mapping[str, object]
) -> None:
    """`set_policy` at each of its routers."""
    for url in target.urls:
        await set_policy(session, url, body)


def worker_urls(state: Mapping[str, Any], url: str) -> list[str]:
    """Where the workers of a router are, by its `GET /workers`."""
    rows = state["workers"]
    if any("url" not in row for row in rows):
        raise BenchError(
            f"{url} tells its workers' addresses to its admin only: give the admin key with "
            "--api-key-env"
        )
    return [row["url"] for row in rows]


async def flush_caches(session: aiohttp.ClientSession, urls: list[str]) -> bool:
    """Empty the workers' prefix caches; False when a worker would not (still busy, or no such
    route), in which case a comparison's second arm may hit what the first one cached."""
    import aiohttp

    flushed = True
    for url in dict.fromkeys(urls):
        try:
            async with session.post(
                url + "/flush_cache", params={"timeout": "10"}, headers=headers_at(url)
            ) as response:
                flushed &= response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            flushed = False
    return flushed
