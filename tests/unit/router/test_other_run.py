"""A worker of another run that has got the port of one of ours takes no request."""

import asyncio
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, post
from toolkit.contract.headers import RUN as HEADER
from toolkit.contract.variables import RUN_ID_VARIABLE as VARIABLE

pytestmark = pytest.mark.touched("router")

GENERATE = "/generate"


def cluster(**fields: Any) -> Cluster:
    """Two plain workers, of the run that the environment names, as their router is."""
    fields = {"role_config": {"plain": {"same_run": True}}, **fields}
    return Cluster(prefills=0, decodes=0, plains=2, config={"dispatch": "concurrent"}, **fields)


def health(state: dict[str, Any]) -> list[bool]:
    return [worker["healthy"] for worker in state["workers"]]


async def ask(up: Cluster, count: int) -> None:
    for status, _ in await asyncio.gather(
        *(post(up, GENERATE, bodies(2)[GENERATE]) for _ in range(count))
    ):
        assert status == 200


@pytest.mark.parametrize("events", [[], ["--no-events"]])
async def test_it_is_kept_out_until_ours_is_back(
    events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "mine")
    async with cluster() as up:
        worker = up.worker("plain-1")
        worker.kill()
        await up.until(lambda state: health(state) == [True, False])
        monkeypatch.setenv(VARIABLE, "theirs")
        worker.args = events
        worker.start()  # on the same port
        why = "has no event stream" if events else "it is of run theirs, this is mine"
        for _ in range(500):
            if why in up.log.read_text():
                break
            await asyncio.sleep(0.02)
        assert f"worker plain-1 is kept out: {'it is not' if events else why}" in (
            up.log.read_text()
        )
        await ask(up, 8)
        assert health(await up.state()) == [True, False]
        assert (await up.stats("plain-1"))["served"] == 0
        worker.kill()
        monkeypatch.setenv(VARIABLE, "mine")
        worker.args = []
        worker.start()
        await up.until(lambda state: health(state) == [True, True])
        await ask(up, 8)
        assert (await up.stats("plain-1"))["served"] > 0


async def test_workers_of_another_host_have_a_run_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "theirs")
    async with cluster(role_config={}, env={VARIABLE: "mine"}) as up:
        await ask(up, 4)


async def test_without_a_launcher_there_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    async with cluster() as up, up.session.get(f"{up.url}/readiness") as response:
        assert response.status == 200 and HEADER not in response.headers


async def test_the_router_says_of_which_run_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "mine")
    env = {VARIABLE: "mine", "ITS_KEY": "secret"}
    async with cluster(env=env) as up:
        for path in ("/health", "/readiness", "/workers"):
            async with up.session.get(up.url + path) as response:
                assert (response.status, response.headers[HEADER]) == (200, "mine")
        async with up.session.post(f"{up.admin}/admin/policy", json={}) as response:
            assert (response.status, response.headers[HEADER]) == (200, "mine")
        body = bodies(2, stream=False)[GENERATE]
        async with up.session.post(up.url + GENERATE, json=body) as response:
            assert response.status == 200 and HEADER not in response.headers
        for wanted, status in (("theirs", 409), ("mine", 200)):
            url, headers = f"{up.admin}/admin/drain", {HEADER: wanted}
            async with up.session.post(url, headers=headers) as response:
                assert response.status == status
        async with up.session.get(f"{up.url}/readiness") as response:
            assert await response.text() == "draining"
            assert (response.status, response.headers[HEADER]) == (503, "mine")
