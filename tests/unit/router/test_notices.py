"""Two routers over the same stand-in workers: a request of the one is found and aborted at the
other, by whom it belongs to and nobody else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, post, run
from toolkit.contract.headers import ROUTER
from toolkit.contract.notices import Notice
from toolkit.contract.paths import EVENTS, NOTICES
from toolkit.contract.variables import ROUTER_NAME_VARIABLE

SLOW = ["--tokens", "400", "--token-ms", "20"]
ALICE, BOB, ADMIN = ({"Authorization": f"Bearer key-of-{who}"} for who in ("alice", "bob", "admin"))
ENV = {"TK_ADMIN": "key-of-admin"}


def body(rid: str, tokens: int = 300) -> dict[str, Any]:
    return {
        "text": "hello", "sampling_params": {"max_new_tokens": tokens}, "rid": rid, "stream": False,
    }  # fmt: skip


def keyed(tmp_path: Path, *clients: str) -> dict[str, Any]:
    path = tmp_path / "-".join(clients)
    path.write_text("".join(f"{who}: key-of-{who}\n" for who in clients))
    path.chmod(0o600)
    return {"api_keys_file": str(path), "admin_key_env": "TK_ADMIN"}


async def both(one: Cluster, other: Cluster) -> None:
    """They know of each other."""
    for each in (one, other):
        await each.until(lambda state: {row.get("routers") for row in state["workers"]} == {2})


async def abort(at: Cluster, order: dict[str, Any], **options: Any) -> tuple[int, Any]:
    status, raw = await post(at, "/abort_request", order, **options)
    return status, json.loads(raw)


async def find(at: Cluster, name: str, **headers: str) -> tuple[int, Any]:
    url = at.url if headers else at.admin
    async with at.session.get(f"{url}/requests/{name}", headers=headers) as answer:
        return answer.status, await answer.json()


async def running(at: Cluster, rid: str, **headers: str) -> asyncio.Task[tuple[int, bytes]]:
    """A request that has begun at a worker."""
    task = asyncio.create_task(post(at, "/generate", body(rid), headers=headers))
    while (await find(at, rid))[1].get("requests", [{}])[0].get("state") != "running":
        await asyncio.sleep(0.01)
    return task


@pytest.mark.parametrize("relays", [1, 2])
def test_what_one_router_has_the_other_one_finds_and_aborts(relays: int) -> None:
    async def main() -> None:
        config = {"relays": relays}
        async with (
            Cluster(config=config, worker_args=SLOW) as one,
            Cluster(config=config, beside=one) as other,
        ):
            await both(one, other)
            mine, kept = await running(one, "mine"), await running(one, "kept")
            status, found = await find(other, "mine")
            assert status == 200
            [row] = found["requests"]
            [own] = (await find(one, "mine"))[1]["requests"]
            assert (row["rid"], row["state"], row["router"]) == ("mine", "running", own["router"])
            assert row["shown"], "it has all that the owner says"
            assert (await find(other, "nobody's"))[0] == 404
            assert await abort(other, {"rid": "nobody's"}) == (200, {"aborted": 0})
            begin = time.monotonic()
            assert await abort(other, {"rid": "mine"}) == (200, {"aborted": 1})
            assert time.monotonic() - begin < 0.5
            assert (await mine)[0] == 499
            assert (await find(other, "mine"))[1]["requests"][0]["state"] == "aborted"
            assert not kept.done()
            assert (await abort(other, {"abort_all": True}))[0] == 403
            theirs = await running(other, "theirs")
            assert await abort(other, {"abort_all": True}, admin=True) == (200, {"aborted": 2})
            assert [(await each)[0] for each in (kept, theirs)] == [499, 499]
            await one.until_stats(lambda stats: all(s["running"] == 0 for s in stats.values()))

    run(main())


def test_a_client_reaches_its_own_requests_only_at_whichever_router(tmp_path: Path) -> None:
    async def main() -> None:
        config = keyed(tmp_path, "alice", "bob")
        async with (
            Cluster(config=config, env=ENV, worker_args=SLOW) as one,
            Cluster(config=config, env=ENV, beside=one) as other,
        ):
            for each in (one, other):
                each.admin_port = each.port
            await both(one, other)
            mine = asyncio.create_task(post(one, "/generate", body("mine"), headers=ALICE))
            await one.until(lambda state: state["running"] == 1)
            assert (await find(other, "mine", **BOB))[0] == 404
            assert await abort(other, {"rid": "mine"}, headers=BOB) == (200, {"aborted": 0})
            status, found = await find(other, "mine", **ALICE)
            assert status == 200 and "-" not in found["requests"][0]["router"]
            assert not mine.done()
            assert (await find(other, "mine", **ADMIN))[1]["requests"][0]["key"] == "alice"
            assert await abort(other, {"rid": "mine"}, headers=ALICE) == (200, {"aborted": 1})
            assert (await mine)[0] == 499
            mine = asyncio.create_task(post(one, "/generate", body("again"), headers=ALICE))
            await one.until(lambda state: state["running"] == 1)
            assert await abort(other, {"abort_all": True}, headers=ADMIN) == (200, {"aborted": 1})
            assert (await mine)[0] == 499

    run(main())


def test_a_client_that_asks_without_end_keeps_nobody_else_from_asking(tmp_path: Path) -> None:
    async def main() -> None:
        config = keyed(tmp_path, "alice", "bob")
        async with Cluster(config=config, env=ENV, worker_args=SLOW) as one:
            flood = [abort(one, {"rid": f"x{n}"}, headers=ALICE) for n in range(300)]
            alone = await asyncio.gather(*flood)
            assert {status for status, _ in alone} == {200}, "there is nobody to ask"
            async with Cluster(config=config, env=ENV, beside=one) as other:
                for each in (one, other):
                    each.admin_port = each.port
                await both(one, other)
                mine = asyncio.create_task(post(one, "/generate", body("mine"), headers=BOB))
                await one.until(lambda state: state["running"] == 1)
                flood = [abort(other, {"rid": f"x{n}"}, headers=ALICE) for n in range(300)]
                answers = await asyncio.gather(*flood)
                assert {status for status, _ in answers} == {200, 429}
                assert await abort(other, {"rid": "mine"}, headers=BOB) == (200, {"aborted": 1})
                assert (await mine)[0] == 499

    run(main())


def test_a_name_that_another_router_gives_another_key_is_another_client(tmp_path: Path) -> None:
    """A key file of its own, with somebody else's key under the same name, opens nothing."""

    async def main() -> None:
        config = keyed(tmp_path, "alice")
        path = tmp_path / "other"
        path.write_text("alice: key-of-mallory\n")
        path.chmod(0o600)
        theirs = {"api_keys_file": str(path), "admin_key_env": "TK_ADMIN"}
        async with (
            Cluster(config=config, env=ENV, worker_args=SLOW) as one,
            Cluster(config=theirs, env={"TK_ADMIN": "another"}, beside=one) as other,
        ):
            await both(one, other)
            mine = asyncio.create_task(post(one, "/generate", body("mine"), headers=ALICE))
            await one.until(lambda state: state["running"] == 1)
            mallory = {"Authorization": "Bearer key-of-mallory"}
            admin = {"Authorization": "Bearer another"}
            for who in (mallory, admin):
                assert (await find(other, "mine", **who))[0] == 404
                assert await abort(other, {"rid": "mine"}, headers=who) == (200, {"aborted": 0})
            assert await abort(other, {"abort_all": True}, headers=admin) == (200, {"aborted": 0})
            await asyncio.sleep(0.1)
            assert not mine.done()
            assert await abort(one, {"rid": "mine"}, headers=ALICE) == (200, {"aborted": 1})
            await mine

    run(main())


def test_who_has_the_workers_key_alone_cannot_abort_in_a_clients_name(tmp_path: Path) -> None:
    """As a worker that is taken over: it makes up notices as it likes."""

    async def main() -> None:
        config = keyed(tmp_path, "alice")
        async with Cluster(config=config, env=ENV, worker_args=SLOW) as one:
            mine = asyncio.create_task(post(one, "/generate", body("mine"), headers=ALICE))
            await one.until(lambda state: state["running"] == 1)
            at = one.worker("decode-0").url
            async with one.session.get(at + EVENTS, headers={ROUTER: "forger"}) as stream:
                own = ""
                while not own:
                    event = json.loads(await stream.content.readline())
                    names = set(event.get("names", ())) - {"forger"}
                    own = names.pop() if names else ""
                orders = [
                    {"rid": "mine", "caller": "alice", "admin": False},
                    {"rid": "mine", "caller": "", "admin": True},
                    {"rid": None, "caller": "", "admin": True},
                    {"rid": "mine", "caller": "alice", "admin": True},
                ]
                for number, each in enumerate(orders):
                    text = json.dumps(each)
                    notice = Notice("forger", f"n{number}", "abort", own, body=text, proof="0" * 64)
                    raw = msgspec.json.encode(notice)
                    async with one.session.post(at + NOTICES, data=raw) as answer:
                        assert (await answer.json())["told"] == [own]
                answers: list[Any] = []
                while len(answers) < len(orders):
                    event = json.loads(await stream.content.readline())
                    answers += [event] if event["type"] == "notice" else []
                said = [json.loads(each["body"]) for each in answers]
                assert said == [{"aborted": 0, "refused": True}] * len(orders)
            assert not mine.done()
            assert await abort(one, {"rid": "mine"}, headers=ALICE) == (200, {"aborted": 1})
            await mine

    run(main())


def test_an_answer_that_makes_no_sense_is_none() -> None:
    """Of a router of another release, or of a worker that makes it up."""

    async def main() -> None:
        async with Cluster() as one:
            at = one.worker("decode-0").url
            async with one.session.get(at + EVENTS, headers={ROUTER: "odd"}) as stream:
                await one.until(lambda state: 2 in {row.get("routers") for row in state["workers"]})
                for number, text in enumerate(('{"aborted": "all"}', "[" * 2_000, "no JSON")):
                    said = asyncio.create_task(abort(one, {"rid": "nobody's"}))
                    event: dict[str, Any] = {}
                    while event.get("kind") != "abort":
                        event = json.loads(await stream.content.readline())
                    notice = Notice(
                        "odd", f"n{number}", "answer", event["sender"], event["id"], text
                    )
                    raw = msgspec.json.encode(notice)
                    async with one.session.post(at + NOTICES, data=raw) as answer:
                        assert (await answer.json())["told"] == [event["sender"]]
                    assert await said == (200, {"aborted": 0, "unanswered": 1})

    run(main())


def test_a_worker_that_hangs_and_a_router_that_does_cost_a_second_at_most() -> None:
    async def main() -> None:
        async with (
            Cluster(worker_args=SLOW, config={"silent_s": 30, "hung_s": 60}) as one,
            Cluster(config={"silent_s": 30, "hung_s": 60}, beside=one) as other,
        ):
            await both(one, other)
            mine = await running(one, "mine")
            os.kill(one.worker("prefill-0").pid, signal.SIGSTOP)  # it is the first to be told
            try:
                assert await abort(other, {"rid": "mine"}) == (200, {"aborted": 1})
                assert (await mine)[0] == 499
            finally:
                os.kill(one.worker("prefill-0").pid, signal.SIGCONT)
            assert one.router is not None
            signal_all(one, signal.SIGSTOP)
            try:
                begin = time.monotonic()
                said = await abort(other, {"rid": "nobody's"})
                assert said == (200, {"aborted": 0, "unanswered": 1})
                assert time.monotonic() - begin < 3
                status, why = await find(other, "nobody's")
                assert status == 404 and "gave no answer: 1" in json.dumps(why)
            finally:
                signal_all(one, signal.SIGCONT)
            one.router.send_signal(signal.SIGKILL)
            one.router.wait()
            await alone(other)
            assert await abort(other, {"rid": "nobody's"}) == (200, {"aborted": 0})

    run(main())


def test_a_request_that_failed_workers_of_one_router_costs_another_one_none() -> None:
    async def main() -> None:
        args = ["--token-ms", "5"]
        async with (
            Cluster(decodes=4, worker_args=args) as one,
            Cluster(beside=one) as other,
        ):
            await both(one, other)
            poison = bodies(20, poison="decode", announced=True)["/v1/completions"]
            assert (await post(one, "/v1/completions", poison))[0] == 422

            def alive() -> int:
                return sum(
                    worker.process.poll() is None for worker in one.workers if worker.process
                )

            while alive() != 3:  # killed, and not yet gone
                await asyncio.sleep(0.01)
            await told(other, "quarantined", "taken")
            status, raw = await post(other, "/v1/completions", poison | {"rid": "again"})
            assert status == 422 and b"a while ago" in raw
            await asyncio.sleep(0.2)
            assert alive() == 3
            ordinary = bodies(4)["/v1/completions"]
            assert (await post(other, "/v1/completions", ordinary))[0] == 200

    run(main())


def test_a_router_that_comes_later_knows_what_is_in_quarantine_and_hands_it_on() -> None:
    """Also one that had died, under its old name."""

    async def main() -> None:
        args = ["--token-ms", "5"]
        path, ordinary = "/v1/completions", bodies(4)["/v1/completions"]
        poison = bodies(20, poison="decode", announced=True)[path]

        async def refuses(late: Cluster) -> None:
            while "1 requests are in quarantine at router" not in late.log.read_text():
                await asyncio.sleep(0.02)
            status, raw = await post(late, path, poison | {"rid": "again"})
            assert status == 422 and b"a while ago" in raw
            assert (await post(late, path, ordinary))[0] == 200
            await asyncio.sleep(0.2)
            assert all(worker.process and worker.process.poll() is None for worker in one.workers)

        async with Cluster(decodes=4, worker_args=args) as one:
            assert (await post(one, path, poison))[0] == 422
            for dead in down(await one.until(lambda state: len(down(state)) == 2)):
                one.worker(dead).kill()
                one.worker(dead).start()
            name = {ROUTER_NAME_VARIABLE: "second"}
            async with Cluster(beside=one, env=name) as other:
                await refuses(other)
                signal_all(other, signal.SIGKILL)
            async with Cluster(beside=one, env=name) as other:
                await refuses(other)
                signal_all(one, signal.SIGKILL)
                await alone(other)
                async with Cluster(beside=one) as third:
                    await refuses(third)

    run(main())


async def alone(at: Cluster) -> None:
    await at.until(lambda state: {row.get("routers", 1) for row in state["workers"]} == {1})


def down(state: dict[str, Any]) -> list[str]:
    return [row["name"] for row in state["workers"] if not row["healthy"]]


def test_a_worker_that_one_router_has_ejected_is_probed_by_the_other_one() -> None:
    """One that fails there as well is out after one request, one that is well serves on."""

    async def main() -> None:
        config = {"decode_policy": "round_robin"}
        path, body = "/v1/completions", bodies(4)["/v1/completions"]
        async with (
            Cluster(decodes=3, config=config) as one,
            Cluster(config=config, beside=one) as other,
        ):
            await both(one, other)
            for well in (False, True):
                await one.make("decode-1", "500")
                while await told(one, "ejected", "sent", wait=False) < 1 + well:
                    assert (await post(one, path, body))[0] == 200
                await told(other, "ejected", "taken", 1 + well)
                if well:
                    await one.make("decode-1", "well")
                before = (await one.stats("decode-1"))["posts"]
                for _ in range(12):
                    assert (await post(other, path, body))[0] == 200
                after = (await one.stats("decode-1"))["posts"]
                if well:
                    assert after - before == 4
                    break
                assert after - before == 1, "it would have been three"
                await one.make("decode-1", "well")
                for each in (one, other):
                    while not await served(each, "decode-1", body):
                        await asyncio.sleep(0.2)

    run(main())


def signal_all(router: Cluster, number: signal.Signals) -> None:
    """To all of its processes."""
    assert router.router is not None
    first = psutil.Process(router.router.pid)
    for process in (first, *first.children(recursive=True)):
        process.send_signal(number)


async def figure(at: Cluster, name: str) -> float:
    async with at.session.get(f"{at.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    found = [line for line in lines if line.startswith(f"toolkit_router_{name} ")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


async def told(at: Cluster, kind: str, outcome: str, count: int = 1, wait: bool = True) -> float:
    """So many notices of a kind."""
    name = f'notices_total{{kind="{kind}",outcome="{outcome}"}}'
    while (now := await figure(at, name)) < count and wait:
        await asyncio.sleep(0.02)
    return now


async def served(at: Cluster, worker: str, body: dict[str, Any]) -> bool:
    """Whether it gets one of a few requests."""
    before = (await at.stats(worker))["served"]
    for _ in range(3):
        assert (await post(at, "/v1/completions", body))[0] == 200
    return bool((await at.stats(worker))["served"] > before)
