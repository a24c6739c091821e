"""The suite on a deployment that runs already: what its routers can be switched to.

Nothing is started or stopped. So only systems are asked about that a running router can turn on and
off (`POST /admin/policy`); each router gets its own policies back on the way out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.bench.errors import BenchError
from toolkit.bench.runner import new_session
from toolkit.bench.suite.question import BASE, Asked, LeftOut, Question, SuiteArm
from toolkit.bench.suite.questions import questions_for
from toolkit.bench.target import get_json, set_policy

SWITCHED = ("late dispatch", "level KV", "expert locality")
"""Systems that take no start of workers."""
ANOTHER_START = "it takes another start of the workers: give the deployment file in place of --url"
SWITCHES = ("dispatch", "first_token")
"""Of `GET /workers`, beside the policies of both sides."""


def questions_at(state: Mapping[str, Any]) -> Asked:
    """All that can be asked of the router whose `GET /workers` this is. Every arm is of the one
    variant that runs: where workers capture experts, they do so for the alternatives, too.

    Raises:
        ValueError: nothing can be.
    """
    rows = [row for row in state.get("workers", ()) if row.get("role") == "decode"]
    if not rows or "policies" not in state:
        raise ValueError("the suite is for prefill and decode workers behind this project's router")
    servers = len({row["name"] for row in rows})
    document: dict[str, Any] = {
        "decode": {"replicas": servers, "dp": len(rows) // servers},
        "router": {"profile": "as it runs"} if "eldr" in state else {},
    }
    if len(rows) > servers:
        document["decode"]["dp_attention"] = True
    whole = questions_for(document)
    asked = Asked({BASE: {}})
    for question in whole.questions:
        if question.system in SWITCHED:
            asked.questions.append(_as_it_runs(question))
        else:
            asked.left_out.append(LeftOut(question.system, ANOTHER_START))
    asked.left_out += [
        each if each.system in SWITCHED else LeftOut(each.system, ANOTHER_START)
        for each in whole.left_out
    ]
    return asked


def _as_it_runs(question: Question) -> Question:
    ours, *others = (SuiteArm(arm.name, BASE, arm.policies) for arm in question.arms)
    return replace(question, ours=ours, others=tuple(others))


@dataclass(frozen=True)
class RunningRouters:
    """Over the same workers, and not the suite's to stop."""

    router_urls: Sequence[str]


class AsItRuns:
    """Hosts the one variant that there is: the running deployment."""

    def __init__(self, urls: Sequence[str], key: str | None) -> None:
        self._urls, self._key = urls, key

    def states(self) -> list[dict[str, Any]]:
        """What each router says of itself. BenchError: nobody answers at one."""
        return [asyncio.run(self._state(url)) for url in self._urls]

    async def _state(self, url: str) -> dict[str, Any]:
        import aiohttp

        try:
            async with new_session(60.0, self._key) as session:
                found = await get_json(session, url + "/workers")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BenchError(f"nothing answers at {url} ({error})") from error
        if not isinstance(found, dict):
            raise BenchError(f"{url}/workers tells nothing: is it this project's router?")
        return found

    @contextmanager
    def __call__(self, path: Path, run_dir: Path | None) -> Iterator[RunningRouters]:
        """The routers, each with its own policies again afterwards."""
        own = [
            {**before["policies"], **{name: before[name] for name in SWITCHES}}
            for before in self.states()
        ]
        try:
            yield RunningRouters(self._urls)
        finally:
            asyncio.run(self._put_back(own))

    async def _put_back(self, own: list[dict[str, str]]) -> None:
        """One that is not there any more keeps no other one from its own."""
        async with new_session(60.0, self._key) as session:
            orders = (set_policy(session, *each) for each in zip(self._urls, own, strict=True))
            done = await asyncio.gather(*orders, return_exceptions=True)
        for url, error in zip(self._urls, done, strict=True):
            if isinstance(error, Exception):
                raise BenchError(f"{url} has not got its own policies back: {error}") from error
