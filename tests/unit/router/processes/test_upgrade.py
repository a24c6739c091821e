"""A router of several processes becomes new code while it serves: nobody is lost or refused."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.preloading import Process
from tests.standin.cluster import Cluster
from tests.standin.relays import (
    DECIDER,
    NEXT,
    RELAYS,
    UPGRADE,
    kill,
    order_upgrade,
    processes,
    until_upgrade,
    upgrade,
)
from tests.standin.storm import Checked, Traffic
from tests.unit.router.cluster_calls import bodies, expected, idle, post, prompt_of, text_of

pytestmark = pytest.mark.touched("router")

ROOT = Path(__file__).resolve().parents[4]
PATH = "/v1/completions"
CONFIG: dict[str, Any] = {"relays": RELAYS, "rerun_wait_s": 20, "no_worker_wait_s": 20}
LONGER = 30_000
"""Tokens of a stream that is cut: it would take five minutes."""
ARGS = ["--token-ms", "10", "--steps"]


@asynccontextmanager
async def serving(
    decodes: int = 2, env: dict[str, str] | None = None, **config: Any
) -> AsyncIterator[Cluster]:
    """A cluster. What a test asks is asked on connections of its own: one that is open would hold
    an upgrade up. The router's log is shown where a test fails."""
    config = CONFIG | config
    async with Cluster(
        prefills=2, decodes=decodes, worker_args=ARGS, config=config, env=env or {}
    ) as cluster:
        await cluster.session.close()
        cluster.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(120),
        )
        try:
            yield cluster
        except BaseException:
            print(cluster.log.read_text())
            raise


def router_of(cluster: Cluster) -> Process:
    assert cluster.router is not None
    return cluster.router


def pids(cluster: Cluster) -> set[int]:
    return {process.pid for process in processes(cluster).values()}


class Load:
    """Traffic beside what is done to the router, and who asks whether it is ready."""

    def __init__(self, cluster: Cluster, asks: bool = True) -> None:
        self._traffic, self._over = Traffic(cluster, 48, seed=1), asyncio.Event()
        self._running = asyncio.create_task(self._traffic.run(None, 30, over=self._over))
        self._asking = asyncio.create_task(self._ask(f"{cluster.url}/readiness" if asks else ""))

    async def _ask(self, url: str) -> None:
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http:
            while url and not self._over.is_set():
                async with http.get(url) as answer:
                    assert answer.status == 200, await answer.text()
                await asyncio.sleep(0.005)

    async def end(self) -> Checked:
        """What came of it."""
        await asyncio.sleep(0.3)
        self._over.set()
        await self._asking
        checked = await self._running
        assert checked.lost == checked.wrong == 0, checked.why
        assert checked.good > 50
        return checked


async def test_nothing_is_lost_or_refused_twice_in_a_row() -> None:
    async with serving(decodes=3) as cluster:
        load, router = Load(cluster), router_of(cluster).pid
        before = pids(cluster)
        for number in (1, 2):
            long = asyncio.create_task(post(cluster, PATH, bodies(400)[PATH]))
            await asyncio.sleep(0.2)
            told = await upgrade(cluster)
            assert (told["phase"], told["number"], told["cut"]) == ("done", number, 0), told
            now = pids(cluster)
            assert len(now) == RELAYS + 1 and not now & before, "all of them are new"
            before = now
            status, raw = await long
            assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), 400))
        await load.end()
        assert router_of(cluster).pid == router and router_of(cluster).poll() is None
        state = await cluster.until(idle)
        assert state["retried"] == state["resumed"] == 0, "what ran was known to the next one"


async def test_a_former_relay_ends_with_its_clients() -> None:
    """Who is connected to it is served as before, and told to connect anew."""
    async with serving(keepalive_s=90) as cluster:
        made: list[int] = []

        async def connected(*_: object) -> None:
            made.append(1)

        watched, lasting = aiohttp.TraceConfig(), aiohttp.TCPConnector(keepalive_timeout=90)
        watched.on_connection_create_end.append(connected)
        async with aiohttp.ClientSession(connector=lasting, trace_configs=[watched]) as http:
            connections, said = [], []
            for turn in range(4):
                if turn == 2:
                    await order_upgrade(cluster)
                    told = await until_upgrade(cluster, "ending")
                    assert told["connections"] == 1
                async with http.post(cluster.url + PATH, json=bodies(5)[PATH]) as answer:
                    connections.append(len(made))
                    said.append(answer.headers.get("Connection"))
                    assert text_of(PATH, await answer.read()) == expected(prompt_of(PATH), 5)
            assert said == [None, None, "close", None]
            assert connections == [1, 1, 1, 2]
        assert (await until_upgrade(cluster, "done"))["connections"] == 0


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a bound": (lambda config: config.update(max_inflight=-1), "max_inflight"),
    "a profile": (lambda config: config.update(profile="/nowhere"), "/nowhere"),
    "relays": (lambda config: config.update(relays=3), "`relays` is another number"),
    "the port": (lambda config: config.update(port=1), "`host`, `port` or `admin_port`"),
    "workers": (lambda config: config["workers"].reverse(), "`workers` are others"),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_what_cannot_take_over_leaves_the_router_as_it_was(what: str) -> None:
    async with serving() as cluster:
        load, before = Load(cluster), pids(cluster)
        written = cluster.config_path.read_text()
        config = json.loads(written)
        BROKEN[what][0](config)
        cluster.config_path.write_text(json.dumps(config))
        told = await upgrade(cluster)
        assert told["phase"] == "failed" and BROKEN[what][1] in told["why"], told
        assert pids(cluster) == before
        await load.end()
        if what == "a bound":
            cluster.config_path.write_text("nonsense")
            told = await upgrade(cluster)
            assert f"{cluster.config_path} is not a router configuration" in told["why"]
            cluster.config_path.unlink()
            assert "No such file" in (await upgrade(cluster))["why"]
            cluster.config_path.write_text(written)
            assert (await upgrade(cluster))["phase"] == "done"
            assert not pids(cluster) & before


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A copy of the code, which a test may change."""
    shutil.copytree(ROOT / "toolkit", tmp_path / "toolkit", ignore=shutil.ignore_patterns("*.pyc"))
    return tmp_path / "toolkit" / "router" / "processes"


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


async def test_new_code_serves_if_it_can(code: Path) -> None:
    """One that cannot start, one that its processes cannot talk to, and one that is well."""
    env = {"PYTHONPATH": str(code.parents[2]), "PYTHONSAFEPATH": "1"}
    async with serving(env=env) as cluster:
        before = pids(cluster)

        async def health() -> str:
            async with aiohttp.ClientSession() as http, http.get(cluster.url + "/health") as answer:
                return await answer.text()

        assert await health() == "ok"
        change(code / "forwarding.py", 'text="ok"', 'text="new"')
        change(code / "relay_process.py", "FIRST_S = 5.0", "FIRST_S = 5.0 +")
        told = await upgrade(cluster)
        assert "SyntaxError" in told["why"], told
        change(code / "relay_process.py", "FIRST_S = 5.0 +", "FIRST_S = 5.0")
        change(code / "wire.py", "MEANING = 1", "MEANING = 2")
        told = await upgrade(cluster)
        assert "say other things to each other" in told["why"], told
        change(code / "wire.py", "MEANING = 2", "MEANING = 1")
        assert pids(cluster) == before and await health() == "ok"
        # What a rehearsal does not show: it comes to nothing when the processes live.
        change(code / "relay_process.py", "    data.start()\n", "    raise OSError\n")
        told = await upgrade(cluster)
        assert told["phase"] == "failed" and "of the new code ended with 1" in told["why"], told
        while pids(cluster) != before:  # those that were dropped
            await asyncio.sleep(0.01)
        assert await health() == "ok"
        change(code / "relay_process.py", "    raise OSError\n", "    data.start()\n")
        assert (await upgrade(cluster))["phase"] == "done"
        assert not pids(cluster) & before and await health() == "new"


async def struck(cluster: Cluster, victim: str) -> set[int]:
    """Order an upgrade and kill a process amid it; again where it was not caught in time. Which
    processes there were before."""
    while True:
        before = processes(cluster)
        relays = [name for name in before if name.startswith("tk-relay")]
        await order_upgrade(cluster)
        told = await until_upgrade(cluster, "starting", "replacing", "ending", "done")
        while told["phase"] != "done":
            now = processes(cluster)
            new = [name for name in now if name.startswith("tk-relay") and name not in before]
            kinds = {"a new relay": new, "a former relay": relays}
            found = [name for name in kinds.get(victim, [victim]) if name in now]
            if found:
                now[found[0]].kill()
                return {each.pid for each in before.values()}
            async with cluster.session.get(cluster.admin + UPGRADE) as answer:
                told = await answer.json()


@pytest.mark.parametrize("victim", ["a new relay", NEXT, DECIDER, "a former relay"])
async def test_a_process_that_is_killed_amid_it_changes_nothing(victim: str) -> None:
    """A relay's own clients are lost, and who asks a decider, as ever; nobody else is."""
    async with serving() as cluster:
        load = Load(cluster, asks=victim != DECIDER) if victim != "a former relay" else None
        before = await struck(cluster, victim)
        told = await until_upgrade(cluster, "done", "failed")
        assert told["phase"] == "done", told
        assert len(pids(cluster)) == RELAYS + 1 and DECIDER in processes(cluster)
        assert not pids(cluster) & before
        if load is not None:
            await load.end()
        status, raw = await post(cluster, PATH, bodies(5)[PATH])
        assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), 5))
        await cluster.until(idle)


async def test_a_limit_cuts_what_still_runs() -> None:
    async with serving() as cluster:
        calls = [asyncio.create_task(post(cluster, PATH, bodies(LONGER)[PATH])) for _ in range(3)]
        await cluster.until(lambda state: state["running"] == 3)
        told = await upgrade(cluster, drain_s=0.5)
        assert (told["phase"], told["cut"]) == ("done", 3), told
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(answer, aiohttp.ClientError)
        await cluster.until(idle)
        await cluster.until_stats(lambda stats: all(not each["running"] for each in stats.values()))


async def test_bounds_are_those_of_both_generations_together() -> None:
    most, lasting = 20, 15
    async with serving(max_inflight=most, max_queue=80) as cluster:
        former = [asyncio.create_task(post(cluster, PATH, bodies(LONGER)[PATH])) for _ in
                  range(lasting)]  # fmt: skip
        await cluster.until(lambda state: state["running"] == lasting)
        await order_upgrade(cluster)
        await until_upgrade(cluster, "ending")

        async def one() -> str:
            status, raw = await post(cluster, PATH, bodies(20)[PATH])
            assert status == 200
            return text_of(PATH, raw)

        later = [asyncio.create_task(one()) for _ in range(60)]
        peak = 0
        while not all(call.done() for call in later):
            peak = max(peak, (await cluster.state())["running"])
            await asyncio.sleep(0.005)
        assert set(await asyncio.gather(*later)) == {expected(prompt_of(PATH), 20)}
        # Relays may take the last slot in the same moment.
        assert most <= peak <= most + 2 * RELAYS - 1
        for call in former:
            call.cancel()
        await until_upgrade(cluster, "done")


async def test_what_operators_switched_outlives_it_unless_the_file_has_changed() -> None:
    async with serving() as cluster:
        wanted = {"decode": "round_robin", "moves": "replay"}
        assert (await post(cluster, "/admin/policy", wanted, admin=True))[0] == 200
        order = {"worker": "decode-1", "deadline_s": 1}
        assert (await post(cluster, "/admin/drain", order, admin=True))[0] == 200
        for policy in ("round_robin", "br0"):
            assert (await upgrade(cluster))["phase"] == "done"
            await cluster.until_ready()
            state = await cluster.state()
            assert state["policies"]["decode"] == policy
            assert {row["name"] for row in state["workers"] if row["held"]} == {"decode-1"}
            config = json.loads(cluster.config_path.read_text()) | {"decode_policy": "br0"}
            cluster.config_path.write_text(json.dumps(config))


async def test_a_signal_alone_upgrades_and_a_second_order_is_refused() -> None:
    async with serving() as cluster:
        before = pids(cluster)
        os.kill(router_of(cluster).pid, signal.SIGUSR2)
        await until_upgrade(cluster, "rehearsing", "starting")
        async with cluster.session.post(cluster.admin + UPGRADE) as answer:
            assert answer.status == 409 and b"upgrade 1 is under way" in await answer.read()
        assert (await until_upgrade(cluster, "done", "failed"))["phase"] == "done"
        assert not pids(cluster) & before
        await kill(cluster, DECIDER)
        await cluster.until_ready()
        assert (await until_upgrade(cluster, "done"))["number"] == 1


@pytest.mark.parametrize("phase", ["rehearsing", "starting", "ending"])
async def test_a_router_that_is_told_to_end_amid_it_ends_in_order(phase: str) -> None:
    async with serving() as cluster:
        calls = [asyncio.create_task(post(cluster, PATH, bodies(1000)[PATH])) for _ in range(6)]
        await cluster.until(lambda state: state["running"] == 6)
        await order_upgrade(cluster)
        await until_upgrade(cluster, phase, "done")
        router = router_of(cluster)
        router.send_signal(signal.SIGTERM)
        for status, raw in await asyncio.gather(*calls):
            assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), 1000))
        assert await asyncio.to_thread(router.wait, 15) == 0


async def test_a_router_of_one_process_says_what_it_takes() -> None:
    async with Cluster(decodes=1, config={"relays": 1}) as cluster:
        for call in (cluster.session.post, cluster.session.get):
            async with call(cluster.admin + UPGRADE) as answer:
                assert answer.status == 409 and b"relays: 2" in await answer.read()


async def ordered(cluster: Cluster, *words: str) -> tuple[int | None, str]:
    """`toolkit upgrade router` with these: exit status, and what it says."""
    command = ("-m", "toolkit", "upgrade", "router", *words)
    running = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, env=os.environ | {"KEY": "secret"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await running.communicate()
    return running.returncode, said.decode()


async def test_the_command_follows_it_to_its_end() -> None:
    """With an admin key: then orders come by the clients' port."""
    config = CONFIG | {"admin_key_env": "KEY", "max_inflight": 8}
    async with Cluster(
        decodes=2, worker_args=ARGS, config=config, env={"KEY": "secret"}
    ) as cluster:
        at = ("--url", cluster.url, "--admin-key-env", "KEY")
        status, said = await ordered(cluster, "--url", cluster.url)
        assert status == 1 and "401: This needs a key" in said
        status, said = await ordered(cluster, *at)
        assert status == 0 and "no request was cut" in said, said
        assert said.index("are tried") < said.index("are started") < said.index("upgraded in")
        call = asyncio.create_task(post(cluster, PATH, bodies(LONGER)[PATH]))
        await cluster.until(lambda state: state["running"] == 1)
        status, said = await ordered(cluster, *at, "--drain-s", "0.3")
        assert status == 1 and "1 requests were cut after 0.3 s" in said, said
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], Exception)
        cluster.config_path.write_text("nonsense")
        status, said = await ordered(cluster, *at)
        assert status == 1 and "the former processes serve on" in said and "Invalid JSON" in said


@pytest.mark.parametrize("body", [b"[]", b'{"drain_s": -1}', b'{"drain_s": "1"}', b'{"now": 1}'])
async def test_a_wrong_order_is_refused(body: bytes) -> None:
    async with serving() as cluster:
        assert (await post(cluster, UPGRADE, body, admin=True))[0] == 400
        assert (await post(cluster, UPGRADE, b""))[0] == 403
