"""BR-0, BR-H and Gimbal through the router: the pool, users, tokens, and what goes wrong."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, events, expected, idle, post, text_of
from tests.unit.router.eldr.cluster import admin, metrics
from toolkit.settings.router.config import RouterConfig

PATH = "/v1/completions"
SLOW = ["--token-ms", "20"]
TOKENS = 40
"""Of an answer: it takes 0.8 s, in which a busy machine still sees that others wait."""


def pooled(slots: int = 2, policy: str = "br0", **options: Any) -> Cluster:
    """Decode workers with few slots, a token in 20 ms."""
    args = options.pop("worker_args", SLOW)
    config = {"decode_policy": policy, "parked_per_prefill": 32} | options.pop("config", {})
    # A prefill's call lasts until its KV has moved, here a fixed time.
    roles = {
        "prefill": ["--transfer-ms", str(options.pop("transfer_ms", 0))],
        "decode": ["--slots", str(slots), *options.pop("decode_args", [])],
    }
    return Cluster(worker_args=args, role_args=roles, config=config, **options)


def send(cluster: Cluster, tokens: int = TOKENS, **fields: Any) -> asyncio.Task[tuple[int, bytes]]:
    return asyncio.ensure_future(post(cluster, PATH, bodies(tokens, **fields)[PATH]))


async def check_all(calls: list[asyncio.Task[tuple[int, bytes]]], tokens: int = TOKENS) -> None:
    for status, raw in await asyncio.gather(*calls):
        assert status == 200, raw
        assert text_of(PATH, raw) == expected("hello", tokens)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["br0", "brh@survival", "brh@learned"])
async def test_the_pool_holds_what_has_no_slot(policy: str) -> None:
    async with pooled(policy=policy) as cluster:
        calls = [send(cluster) for _ in range(12)]
        await cluster.until(lambda s: s["pool"] == {"waiting": 8, "bound": 4, "expired": 0})
        await check_all(calls)
        for name in ("decode-0", "decode-1"):
            assert (await cluster.stats(name))["peak"] == 2
        state = await cluster.until(idle)
        assert state["pool"] == {"waiting": 0, "bound": 12, "expired": 0}
        assert state["decisions"]["decode"]["placed"] == 12
        samples = await metrics(cluster)
        assert samples["pool_wait_seconds_count"] == 12
        assert samples["pool_waiting"] == 0
        placed = f'policy_counts_total{{kind="",policy="{policy}",side="decode",what="placed"}}'
        assert samples[placed] == 12
        assert state["balance"]["samples"] > 0
        assert samples["kv_looks_total"] == samples["kv_samples_total"] > 0  # for one release
        assert samples['kv_tokens_total{rank="max"}'] >= samples['kv_tokens_total{rank="min"}']


async def test_one_rank_alone_serves_in_order_of_arrival() -> None:
    async with pooled(slots=1, decodes=1) as cluster:
        order: list[int] = []

        async def one(number: int) -> None:
            await send(cluster, tokens=3)
            order.append(number)

        tasks = []
        for number in range(6):
            tasks.append(asyncio.ensure_future(one(number)))
            await cluster.until(lambda s, n=number: s["parked"] + s["pool"]["bound"] > n)
        await asyncio.gather(*tasks)
        assert order == sorted(order)


async def test_a_client_that_goes_away_while_it_waits_leaves_nothing() -> None:
    async with pooled(slots=1, decodes=1) as cluster:
        first = send(cluster, tokens=40)
        await cluster.until(lambda s: s["pool"]["bound"] == 1)
        gone = send(cluster)
        await cluster.until(lambda s: s["pool"]["waiting"] == 1)
        last = send(cluster)
        await cluster.until(lambda s: s["pool"]["waiting"] == 2)
        gone.cancel()
        await cluster.until(lambda s: s["pool"]["waiting"] == 1)
        await check_all([first], 40)
        await check_all([last])
        state = await cluster.until(idle)
        assert state["pool"]["bound"] == 2
        assert (await cluster.stats("decode-0"))["served"] == 2


@pytest.mark.slow
async def test_an_abort_reaches_those_who_wait() -> None:
    async with pooled(slots=1, decodes=1, transfer_ms=2500) as cluster:
        first = send(cluster, tokens=150)
        await cluster.until(lambda s: s["pool"]["bound"] == 1)
        second = send(cluster, rid="mine")
        await cluster.until(lambda s: s["pool"]["waiting"] == 1)
        await post(cluster, "/abort_request", {"rid": "mine"})
        status, raw = await second
        assert (status, b"aborted" in raw) == (499, True)
        await cluster.until_stats(lambda s: len(s["prefill-0"]["aborted"]) == 1)
        await check_all([first], 150)
        await cluster.until(idle)


@pytest.mark.slow
async def test_a_decode_worker_is_killed_while_others_wait_and_nothing_is_lost() -> None:
    async with pooled() as cluster:
        calls = [send(cluster, tokens=50) for _ in range(10)]
        await cluster.until(lambda s: s["pool"]["waiting"] == 6)
        cluster.worker("decode-0").kill()
        await check_all(calls, 50)
        state = await cluster.until(idle)
        assert state["resumed"] + state["retried"] >= 1
        assert (await cluster.stats("decode-1"))["peak"] == 2


@pytest.mark.slow
async def test_without_a_decode_worker_the_pool_waits_for_one() -> None:
    async with pooled(decodes=1) as cluster:
        calls = [send(cluster, tokens=50) for _ in range(5)]
        await cluster.until(lambda s: s["pool"]["waiting"] == 3)
        decode = cluster.worker("decode-0")
        decode.kill()
        await cluster.until(lambda s: not s["workers"][1]["healthy"])
        decode.start()
        await check_all(calls, 50)
        await cluster.until(idle)


async def test_a_prefill_that_dies_while_its_request_waits_is_run_again() -> None:
    async with pooled(slots=1, decodes=1, transfer_ms=1500) as cluster:
        first = send(cluster, tokens=80)
        await cluster.until(lambda s: s["pool"]["bound"] == 1)
        second = send(cluster)
        await cluster.until(lambda s: s["pool"]["waiting"] == 1)
        prefill = cluster.worker("prefill-0")
        prefill.kill()
        await cluster.until(lambda s: s["pool"]["waiting"] == 0)
        prefill.start()
        await check_all([first], 80)
        await check_all([second])
        assert (await cluster.until(idle))["retried"] >= 1


async def test_a_new_policy_takes_over_those_who_wait() -> None:
    async with pooled(slots=1) as cluster:
        calls = [send(cluster, tokens=60) for _ in range(6)]
        await cluster.until(lambda s: s["pool"]["waiting"] == 4)
        for name in ("brh@learned", "br0@paper", "brh@paper:survival"):
            assert (await admin(cluster, "policy", {"decode": name}))[0] == 200
        assert (await cluster.state())["pool"]["waiting"] == 4
        assert (await admin(cluster, "policy", {"decode": "shortest_queue"}))[0] == 200
        await cluster.until(lambda s: s["pool"]["waiting"] == 0 and s["parked"] == 0)
        await check_all(calls, 60)
        calls = [send(cluster) for _ in range(4)]
        assert (await admin(cluster, "policy", {"decode": "br0"}))[0] == 200
        await check_all(calls)
        await cluster.until(idle)


async def test_a_drain_lets_those_who_wait_finish() -> None:
    async with pooled(slots=1, decodes=1) as cluster:
        calls = [send(cluster) for _ in range(3)]
        await cluster.until(lambda s: s["pool"]["waiting"] == 2)
        assert (await admin(cluster, "drain"))[0] == 200
        assert (await send(cluster))[0] == 503
        await check_all(calls)


async def test_a_rank_that_publishes_nothing_counts_as_loaded() -> None:
    async with pooled(slots=4) as cluster:
        mute = cluster.worker("decode-1")
        mute.kill()
        mute.args = [*mute.args, "--mute"]
        await cluster.until(lambda s: not s["workers"][2]["healthy"])
        mute.start()
        await cluster.until(lambda s: s["workers"][2]["healthy"])
        first = send(cluster, tokens=60)
        await cluster.until(lambda s: s["workers"][1]["load"] is not None)
        calls = [send(cluster) for _ in range(6)]
        await cluster.until(lambda s: s["pool"]["bound"] == 7)
        await check_all([first], 60)
        await check_all(calls)
        # It is served when the other one is full, and not before.
        assert (await cluster.stats("decode-0"))["peak"] == 4
        assert (await cluster.stats("decode-1"))["peak"] <= 3


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["br0", "brh@survival"])
@pytest.mark.parametrize("setup", ["concurrent", "plain", "no events"])
async def test_without_late_binding_they_choose_for_one_at_a_time(policy: str, setup: str) -> None:
    config = {"decode_policy": policy}
    options: dict[str, Any] = {"worker_args": SLOW}
    if setup == "concurrent":
        config["dispatch"] = "concurrent"
    elif setup == "plain":
        options |= {"prefills": 0, "decodes": 0, "plains": 2}
    else:
        options["worker_args"] = [*SLOW, "--no-events"]
    async with Cluster(config=config, **options) as cluster:
        await check_all([send(cluster) for _ in range(6)])
        state = await cluster.until(idle)
        rows = [w for w in state["workers"] if w["role"] != "prefill"]
        done = [row["completed"] for row in rows]
        assert (sum(done), min(done) > 0) == (6, True)


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_a_user_stays_on_a_worker_and_is_named_nowhere(side: str) -> None:
    options = {"prefills": 3, "decodes": 1} if side == "prefill" else {"decodes": 3}
    async with Cluster(config={f"{side}_policy": "gimbal"}, **options) as cluster:  # type: ignore[arg-type]

        async def homes(fields: dict[str, Any], header: str = "") -> set[str]:
            headers = {"x-smg-routing-key": header} if header else {}
            before = {w["name"]: w["completed"] for w in (await cluster.until(idle))["workers"]}
            for _ in range(4):
                body = bodies(2, **fields)[PATH]
                assert (await post(cluster, PATH, body, headers=headers))[0] == 200
            after = {w["name"]: w["completed"] for w in (await cluster.until(idle))["workers"]}
            return {n for n in after if n.startswith(side) and after[n] > before[n]}

        names = ["ann@home.example", "bob@home.example", "cat@home.example"]
        assert [len(await homes({"user": name})) for name in names] == [1, 1, 1]
        assert len(await homes({"session_id": names[0]})) == 1
        assert len(await homes({}, names[0])) == 1
        assert len(await homes({})) == 3  # no name: in turn
        state = await cluster.state()
        decisions = state["decisions"][side]["decisions"]
        assert decisions["affinity"] == 15
        assert decisions["anonymous"] == 4
        async with cluster.session.get(cluster.url + "/metrics") as response:
            text = await response.text()
        said = json.dumps(state) + text + cluster.log.read_text()
        assert "home.example" not in said
        assert 'what="decisions"' in text


@pytest.mark.parametrize("stream", [True, False])
async def test_lengths_are_learned_from_what_was_counted(stream: bool) -> None:
    async with pooled(slots=8, policy="brh@survival", decode_args=["--steps"]) as cluster:
        for _ in range(3):
            calls = [send(cluster, tokens=12, stream=stream) for _ in range(8)]
            assert {status for status, _ in await asyncio.gather(*calls)} == {200}
        state = await cluster.until(idle)
        predicted = state["decisions"]["decode"]["prediction"]
        assert predicted["judged"] == 6
        # All are of 12 tokens: once that is known, an error of 80 steps is out of reach.
        assert predicted["error_steps"] < 70
        assert 'prediction{policy="brh@survival",what="judged"}' in await metrics(cluster)


async def test_a_resumed_stream_goes_on_counting() -> None:
    async with pooled(policy="brh@survival", slots=4) as cluster:
        body = bodies(30, crash_after=10)[PATH]
        status, raw = await post(cluster, PATH, body)
        assert status == 200
        assert text_of(PATH, raw) == expected("hello", 30)
        assert len(events(raw)) >= 30
        state = await cluster.until(idle)
        assert state["resumed"] == 1
        assert (await metrics(cluster))["tokens_total"] == 30


@pytest.mark.parametrize(
    ("side", "name", "said"),
    [
        ("decode", "brh@crystal", "unknown predictor 'crystal'; known: survival"),
        ("decode", "br0@x", "s_greedy"),
        ("decode", "gimbal@2", r"theta_kv = 2 must lie in \(0, 1\]"),
        ("prefill", "gimbal@0.9:-1", "theta_diff = -1"),
        ("prefill", "br0", "unknown prefill policy 'br0'"),
        ("decode", "br0@papre", r"did you mean br0@paper\?"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_what_is_wrong(
    side: str, name: str, said: str
) -> None:
    worker = {"name": "a", "role": "plain", "url": "http://127.0.0.1:1"}
    with pytest.raises(ValueError, match=said):
        RouterConfig.model_validate({"workers": [worker], f"{side}_policy": name})


@pytest.mark.slow
def test_numpy_is_loaded_only_where_a_policy_needs_it() -> None:
    script = (
        "import sys; from toolkit.router.app import RouterApp;"
        "from toolkit.settings.router.config import RouterConfig;"
        "w = {'name': 'a', 'role': 'plain', 'url': 'http://127.0.0.1:1'};"
        "RouterApp(RouterConfig.model_validate({'workers': [w], 'decode_policy': sys.argv[1]}));"
        "print('numpy' in sys.modules)"
    )
    for policy, needed in (("br0", "False"), ("gimbal", "False"), ("brh@learned", "True")):
        said = subprocess.run(
            [sys.executable, "-c", script, policy], capture_output=True, text=True, check=True
        )
        assert said.stdout.strip() == needed
