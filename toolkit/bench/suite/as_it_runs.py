"""The suite on a deployment that runs already: what its router can be switched to.

Nothing is started or stopped. So only systems are asked about that a running router can turn on and
off (`POST /admin/policy`); the router gets its policies back on the way out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
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
class RunningRouter:
    """A router that is not the suite's to stop."""

    router_url: str


class AsItRuns:
    """Hosts the one variant that there is: the running deployment."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url, self._key = url, key

    def state(self) -> dict[str, Any]:
        """What the router says of itself. BenchError: nobody answers there."""
        import aiohttp

        async def ask() -> Any:
            async with new_session(60.0, self._key) as session:
                return await get_json(session, self._url + "/workers")

        try:
            found = asyncio.run(ask())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BenchError(f"nothing answers at {self._url} ({error})") from error
        if not isinstance(found, dict):
            raise BenchError(f"{self._url}/workers tells nothing: is it this project's router?")
        return found

    @contextmanager
    def __call__(self, path: Path, run_dir: Path | None) -> Iterator[RunningRouter]:
        """The router, with its own policies again afterwards."""
        before = self.state()
        own = {**before["policies"], **{name: before[name] for name in SWITCHES}}
        try:
            yield RunningRouter(self._url)
        finally:
            asyncio.run(self._put_back(own))

    async def _put_back(self, policies: dict[str, str]) -> None:
        async with new_session(60.0, self._key) as session:
            await set_policy(session, self._url, policies)
