"""How a request's class is found, and what the router does by it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, idle, post, run
from tests.unit.router.house import House, turns
from toolkit.contract.headers import CLASS
from toolkit.contract.request_class import RequestClass
from toolkit.decide.choosing import Chooser
from toolkit.decide.ranks import KnownRanks, WorkerSpec, WorkerState
from toolkit.decide.requests import RequestState
from toolkit.decide.reservation import Reservation
from toolkit.decide.watchdog import StuckBounds
from toolkit.policies import make_policy
from toolkit.policies.base import RequestView
from toolkit.router.app import RouterApp
from toolkit.router.classes import class_of
from toolkit.router.errors import ApiError
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.splitting import parse
from toolkit.settings.router.classes import Classes
from toolkit.settings.router.config import ConfigError, RouterConfig

LS, STANDARD, BE = RequestClass.LATENCY_SENSITIVE, RequestClass.STANDARD, RequestClass.BEST_EFFORT
PATHS = list(bodies(1))
WORKER = {"name": "w", "role": "plain", "url": "http://127.0.0.1:1"}
OPERATOR: dict[str, Any] = {
    "default": "best_effort",
    "keys": {"batch": "best_effort", "console": "latency_sensitive"},
    "users": {"nightly": "best_effort", "boss": "latency_sensitive"},
    "priority": {"latency_sensitive": 5, "best_effort": -5},
    "claim": ["console", "app"],
}
Case = tuple[dict[str, Any], dict[str, Any], str | None, str, RequestClass]
CASES: list[Case] = [
    # What a request says itself, where the operator says nothing.
    ({}, {}, None, "", STANDARD),
    ({}, {"service_tier": "priority"}, None, "", LS),
    ({}, {"service_tier": "flex"}, None, "", BE),
    ({}, {"service_tier": "auto"}, None, "", STANDARD),
    ({}, {"service_tier": 3, "priority": 9, "user": ["a"]}, None, "", STANDARD),
    ({}, {"service_tier": "priority"}, "best_effort", "", BE),
    ({}, {}, "latency_sensitive", "", LS),
    ({}, {}, "standard", "", STANDARD),
    # The operator's word goes before it.
    (OPERATOR, {}, None, "", BE),
    (OPERATOR, {}, "latency_sensitive", "batch", BE),
    (OPERATOR, {}, None, "console", LS),
    (OPERATOR, {"user": "nightly"}, "latency_sensitive", "app", BE),
    (OPERATOR, {"user": "boss"}, None, "app", LS),
    # A claim of somebody who may not make one.
    (OPERATOR, {"user": "boss"}, None, "other", STANDARD),
    (OPERATOR, {}, "latency_sensitive", "other", STANDARD),
    (OPERATOR, {"service_tier": "priority"}, None, "", STANDARD),
    (OPERATOR, {"service_tier": "priority"}, None, "app", LS),
    # SGLang's priority, where its numbers have a meaning.
    (OPERATOR, {"priority": 5}, None, "app", LS),
    (OPERATOR, {"priority": 4}, None, "app", STANDARD),
    (OPERATOR, {"priority": -5}, None, "app", BE),
    (OPERATOR, {"priority": True}, None, "app", BE),
]


@pytest.mark.parametrize(("said", "body", "header", "key", "expected"), CASES)
def test_the_first_that_says_one_decides(
    said: dict[str, Any], body: dict[str, Any], header: str | None, key: str, expected: RequestClass
) -> None:
    classes = Classes.model_validate(said)
    assert class_of(classes, body, header, key) is expected
    assert Classes.model_validate(classes.model_dump(mode="json")) == classes


@pytest.mark.parametrize(
    "wrong",
    [
        {"default": "urgent"},
        {"keys": {"a": "first"}},
        {"priority": {"latency_sensitive": 1, "best_effort": 1}},
        {"priority": {"latency_sensitive": 1}},
        {"claim": "nobody"},
        {"header": True},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Classes.model_validate(wrong)


def test_a_header_that_names_no_class_is_the_clients_mistake() -> None:
    with pytest.raises(ApiError, match="none of latency_sensitive, standard, best_effort") as error:
        class_of(Classes(), {}, "now", "")
    assert error.value.status == 400


def test_a_key_that_nobody_has_is_a_mistake_in_the_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("app: key-of-app\n")
    keys.chmod(0o600)
    for classes in ({"keys": {"ap": "best_effort"}}, {"claim": ["app", "ap"]}):
        given = {"workers": [WORKER], "api_keys_file": str(keys), "classes": classes}
        with pytest.raises(ConfigError, match="no client key is called ap"):
            RouterApp(RouterConfig.model_validate(given))
    given = {"workers": [WORKER], "api_keys_file": str(keys), "classes": {"claim": ["app"]}}
    RouterApp(RouterConfig.model_validate(given))


def test_without_classes_nobody_has_one() -> None:
    body = b'{"prompt": ["a", "b"], "service_tier": "flex"}'
    job = parse("/v1/completions", body, said_class="nonsense")
    assert {sub_request.view.request_class for sub_request in job.sub_requests} == {STANDARD}
    job = parse("/v1/completions", body, classes=Classes())
    assert {sub_request.view.request_class for sub_request in job.sub_requests} == {BE}


def test_best_effort_requests_wait_behind_others_at_a_prefill_worker() -> None:
    """One prefill at a time: of those who wait for a credit the others go first."""

    async def check() -> None:
        config = {"classes": {}, "parked_per_prefill": 1}
        role_args = {"prefill": ["--prefill-ms", "40"]}
        async with Cluster(config=config, role_args=role_args) as cluster:
            ended: list[str] = []

            async def one(name: str, kind: str) -> None:
                body = bodies(2, stream=False)["/v1/completions"]
                status, _ = await post(
                    cluster, "/v1/completions", body, headers={CLASS: kind} if kind else {}
                )
                assert status == 200
                ended.append(name)

            tasks = []
            kinds = ["", "best_effort", "best_effort", "latency_sensitive", "standard"]
            for number, kind in enumerate(kinds):
                tasks.append(asyncio.create_task(one(f"{kind} {number}", kind)))
                await asyncio.sleep(0.005)
            await asyncio.gather(*tasks)
            assert [name.split()[0] for name in ended[-4:]] == [
                "latency_sensitive", "standard", "best_effort", "best_effort",
            ]  # fmt: skip
            assert await _figures(cluster) == {
                ("class_requests_total", "best_effort"): 2,
                ("class_requests_total", "latency_sensitive"): 1,
            }
            await cluster.until(idle)

    run(check())


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_header_is_answered_and_a_right_one_is_measured(path: str) -> None:
    async def check() -> None:
        async with Cluster(config={"classes": {}}) as cluster:
            body = bodies(3)[path]
            status, raw = await post(cluster, path, body, headers={CLASS: "quick"})
            assert status == 400 and b"none of" in raw
            status, _ = await post(cluster, path, body, headers={CLASS: "latency_sensitive"})
            assert status == 200
            found = await _figures(cluster)
            assert found[("class_ttft_seconds_count", "latency_sensitive")] == 1
            await cluster.until(idle)

    run(check())


def test_best_effort_requests_are_the_first_to_be_turned_away() -> None:
    async def check() -> None:
        config = {"classes": {}, "max_inflight": 2, "max_queue": 2}
        async with Cluster(config=config, worker_args=["--token-ms", "20"]) as cluster:
            body = bodies(20)["/v1/completions"]

            async def one(kind: str) -> int:
                status, _ = await post(cluster, "/v1/completions", body, headers={CLASS: kind})
                return status

            tasks = [asyncio.create_task(one("best_effort")) for _ in range(4)]
            await asyncio.sleep(0.15)
            statuses = [await one("latency_sensitive"), *await asyncio.gather(*tasks)]
            assert sorted(statuses) == [200, 200, 200, 200, 429] and statuses[0] == 200

    run(check())


async def _figures(cluster: Cluster) -> dict[tuple[str, str], int]:
    async with cluster.session.get(cluster.url + "/metrics") as answer:
        text = await answer.text()
    found = re.findall(
        r"^toolkit_router_(class_requests_total|class_ttft_seconds_count){class=\"(\w+)\"} (\S+)$",
        text,
        re.MULTILINE,
    )
    return {(name, kind): int(float(count)) for name, kind, count in found}


def prefills(count: int, preempts: bool = True, kept_back: int = 0) -> Chooser:
    """Prefill workers that stop best-effort prompts, or do not; with 8 credits each."""
    bounds = StuckBounds(0.0, 0.0)
    specs = [WorkerSpec(f"p{n}", "prefill", preempts=preempts, parked=8) for n in range(count)]
    ranks = KnownRanks(WorkerState(spec, bounds) for spec in specs)
    for worker in ranks.workers.values():
        worker.up()
    choosing = Chooser(ranks, eject_share=0.5, kept_back=kept_back, stages=None)
    choosing.use("prefill", make_policy("shortest_queue", side="prefill"))
    return choosing


def asked(kind: RequestClass) -> RequestView:
    return RequestView(prompt_tokens=100, request_class=kind)


def chosen(
    choosing: Chooser, kind: RequestClass, credit: bool = False, role: str = "prefill"
) -> str | None:
    request = RequestState(0, asked(kind), "split", True, 0.0, 0.0)
    rank = choosing.choose(role, request, 0.0, credit)
    return None if rank is None else rank.worker.name


@pytest.mark.parametrize("preempts", [True, False])
def test_those_latency_sensitive_go_where_only_best_effort_prompts_are(preempts: bool) -> None:
    choosing = prefills(2, preempts)
    first, second = choosing.ranks.of("prefill")
    best_effort = [Reservation(first, asked(BE), 0.0) for _ in range(3)]
    other = Reservation(second, asked(STANDARD), 0.0)
    assert chosen(choosing, STANDARD) == "p1"
    assert chosen(choosing, LS) == ("p0" if preempts else "p1")
    Reservation(first, asked(LS), 0.0)
    Reservation(first, asked(LS), 0.0)
    assert chosen(choosing, LS) == "p1"
    other.end(True, 1.0)
    best_effort.pop().cancel()
    for reservation in best_effort:
        reservation.end(True, 1.0)
    assert (first.best_effort_requests, first.best_effort_tokens) == (0, 0)


def test_best_effort_prompts_leave_a_place_for_others() -> None:
    choosing = prefills(1, kept_back=1)
    taken = [chosen(choosing, BE, credit=True) for _ in range(8)]
    assert taken == ["p0"] * 7 + [None]
    assert chosen(choosing, LS, credit=True) == "p0"
    assert chosen(choosing, LS, credit=True) is None


def test_with_classes_an_eighth_of_the_credits_is_kept_back() -> None:
    workers = [
        {"name": "p", "role": "prefill", "url": "http://127.0.0.1:2", "bootstrap_port": 1},
        {"name": "d", "role": "decode", "url": "http://127.0.0.1:1"},
    ]
    cases: list[tuple[dict[str, Any], int]] = [({"classes": {}}, 2), ({}, 0)]
    for said, kept in cases:
        config = RouterConfig.model_validate({"workers": workers, "parked_per_prefill": 16, **said})
        assert KnownWorkers(config).decider.bounds.kept_back == kept


@pytest.mark.parametrize("preempts", [True, False])
def test_those_latency_sensitive_are_bound_to_full_workers_that_pause_answers(
    preempts: bool,
) -> None:
    async def check() -> None:
        house = House(ranks=2, slots=2, preempts=preempts)
        for kind in (BE, STANDARD, BE, BE):
            house.enter(kind=kind)
            await turns()
            house.take()
        assert [rank.inflight for rank in house.ranks] == [2, 2]
        house.enter(kind=STANDARD)
        latency_sensitive = [house.enter(kind=LS) for _ in range(4)]
        await turns(6)
        house.take()
        bound = [waiter for waiter in latency_sensitive if waiter.bound.done()]
        # One of each two slots of best-effort answers, all three of them.
        assert len(bound) == (3 if preempts else 0)
        assert len(house.waiting()) == 5 - len(bound)

    run(check())


def test_where_there_is_a_free_slot_no_answer_is_paused() -> None:
    async def check() -> None:
        house = House(ranks=2, slots=2, preempts=True)
        first, second = house.ranks
        for _ in range(2):
            Reservation(first, asked(BE), 0.0)
        Reservation(second, asked(STANDARD), 0.0)
        latency_sensitive = house.enter(kind=LS)
        await turns()
        assert latency_sensitive.bound.result().rank is second
        choosing = house.channel.decider.choosing
        assert chosen(choosing, LS, role="decode") == first.worker.name

    run(check())
