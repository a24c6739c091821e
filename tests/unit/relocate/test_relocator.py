"""The relocator against a worker whose map and answers a test makes up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from toolkit.contract.paths import PLACEMENT
from toolkit.placement import Placement, Topology
from toolkit.placement.online import Cost, Online, PlacementDecision, RelocationSettings
from toolkit.profile.tap import Heard, PhaseRows
from toolkit.relocate.app import make
from toolkit.relocate.errors import RelocationError
from toolkit.relocate.relocator import Relocator
from toolkit.relocate.server import Server, Stale

TABLE = np.array([[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0]])


class Worker:
    """Holds a map of two layers, of which the model has a dense one between."""

    def __init__(self) -> None:
        self.layers = {"0": TABLE[0].tolist(), "2": TABLE[1].tolist(), "1": list(range(8))}
        self.serial = 0
        self.obstacle = ""
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.orders: list[dict[str, Any]] = []

    async def show(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "serial": self.serial, "layers": self.layers, "moe_layers": [0, 2], "experts": 8,
                "gpus": 4, "gpus_per_node": 2, "expert_bytes": 1000, "dispatch": "dynamic",
                "obstacle": self.obstacle,
            }
        )  # fmt: skip

    async def take(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.answers:
            status, told = self.answers.pop(0)
            return web.json_response(told, status=status)
        assert body["serial"] == self.serial
        self.orders.append(body["layers"])
        self.layers |= body["layers"]
        self.serial += 1
        return web.json_response({"serial": self.serial, "seconds": 0.001, "bytes": 2000})


def with_worker(check: Callable[[Any], Awaitable[None]]) -> Callable[[], None]:
    """A test of a coroutine that is given a worker which serves."""

    async def main() -> None:
        worker: Any = Worker()
        app = web.Application()
        app.router.add_get(PLACEMENT, worker.show)
        app.router.add_post(PLACEMENT, worker.take)
        async with TestServer(app) as server, ClientSession() as session:
            worker.url, worker.session = str(server.make_url("")).rstrip("/"), session
            await check(worker)

    def test() -> None:
        asyncio.run(asyncio.wait_for(main(), 60))

    return test


def decision(target: np.ndarray) -> PlacementDecision:
    return PlacementDecision(True, "asked", "", Placement(target, 8, 4), saved_s=1e9, written=16)


@with_worker
async def test_a_target_is_reached_in_small_orders_of_the_layers_with_experts(worker: Any) -> None:
    relocator = Relocator(worker.session, worker.url, RelocationSettings())
    target = TABLE[:, [2, 1, 0, 3, 6, 5, 4, 7]]
    told = await relocator._move(decision(target))
    assert told["outcome"] == "moved" and told["orders"] == len(worker.orders) > 0
    assert [worker.layers["0"], worker.layers["2"]] == target.tolist()
    assert worker.layers["1"] == list(range(8))
    assert relocator.figures.orders == told["orders"]
    assert relocator.figures.longest_s == 0.001


@with_worker
async def test_who_was_quicker_is_built_upon(worker: Any) -> None:
    worker.answers = [(409, {"error": "the map is number 4 by now"})]
    relocator = Relocator(worker.session, worker.url, RelocationSettings())
    target = TABLE[:, [2, 1, 0, 3, 4, 5, 6, 7]]
    assert (await relocator._move(decision(target)))["outcome"] == "moved"
    assert worker.layers["0"] == target[0].tolist() and relocator.figures.stale == 1


@with_worker
async def test_what_was_read_too_slowly_is_counted_once(worker: Any) -> None:
    relocator = Relocator(worker.session, worker.url, RelocationSettings())
    heard = Heard(columns=("decode", "seconds"), dropped=3)
    tap: Any = SimpleNamespace(heard=heard)
    for _ in range(2):
        assert relocator._take(tap, (0, 2)) == ([], 0)
        assert relocator.status()["dropped"] == 3
    app = make({"one": relocator})
    async with (
        TestServer(app) as server,
        worker.session.get(server.make_url("/metrics")) as response,
    ):
        text = await response.text()
    assert 'toolkit_relocate_dropped_frames_total{server="one"} 3.0' in text


@with_worker
async def test_its_state_is_told_once_it_has_decided(worker: Any) -> None:
    relocator = Relocator(worker.session, worker.url, RelocationSettings())
    relocator.figures.decisions["stays"] += 2
    app = make({"one": relocator})
    async with TestServer(app) as server, worker.session.get(server.make_url("/")) as response:
        assert response.status == 200, await response.text()
        assert (await response.json())["one"]["decisions"] == {"stays": 2}


@with_worker
async def test_who_is_always_quicker_is_left_alone(worker: Any) -> None:
    worker.answers = [(409, {"error": "another one"})] * 9
    relocator = Relocator(worker.session, worker.url, RelocationSettings())
    told = await relocator._move(decision(TABLE[:, [2, 1, 0, 3, 4, 5, 6, 7]]))
    assert told["outcome"].startswith("given up") and not worker.orders


@with_worker
async def test_a_move_that_turns_out_dear_is_stopped(worker: Any) -> None:
    relocator = Relocator(worker.session, worker.url, RelocationSettings())
    cheap = replace(decision(TABLE[:, ::-1]), saved_s=1e-9)
    told = await relocator._move(cheap)
    assert told["outcome"].startswith("stopped") and len(worker.orders) == 1


@with_worker
async def test_what_the_worker_says_is_told(worker: Any) -> None:
    server = Server(worker.session, worker.url)
    worker.obstacle = "one GPU holds all experts"
    with pytest.raises(RelocationError, match="one GPU holds all experts"):
        await server.present()
    worker.obstacle = ""
    present = await server.present()
    assert present.layers == (0, 2) and present.topology == Topology(4, 2)
    worker.answers = [(409, {"error": "no"}), (504, {"error": "late"})]
    step = next(iter(_steps(present)))
    with pytest.raises(Stale):
        await server.order(present, step)
    with pytest.raises(RelocationError, match="late"):
        await server.order(present, step)
    with pytest.raises(RelocationError, match="no answer from"):
        await Server(worker.session, "http://127.0.0.1:1").present()
    with pytest.raises(RelocationError, match="relocate: true"):
        await Server(worker.session, worker.url + "/elsewhere").present()


def _steps(present: Any) -> Any:
    from toolkit.placement.relocation import steps

    target = Placement(present.placement.physical_to_logical[:, ::-1], 8, 4)
    return steps(present.placement, target, present.topology, 4)


@with_worker
async def test_who_asks_hears_when_the_worker_goes_away_meanwhile(worker: Any) -> None:
    relocator = Relocator(worker.session, worker.url, RelocationSettings())
    asking = asyncio.create_task(relocator.ask(dry_run=True))
    await asyncio.sleep(0)
    worker.obstacle = "it is gone"
    with pytest.raises(RelocationError):
        await relocator._decided(Online(Topology(4, 2), RelocationSettings()), "asked")
    assert len(relocator._asked) == 1
    relocator._refuse(RelocationError("it is gone"))  # as `run` does
    with pytest.raises(RelocationError, match="it is gone"):
        await asking


@with_worker
async def test_its_http_takes_orders_and_shows_figures(worker: Any) -> None:
    relocator = Relocator(worker.session, worker.url, RelocationSettings())

    async def answer(told: Any) -> None:
        while not relocator._asked:
            await asyncio.sleep(0.005)
        if isinstance(told, Exception):
            relocator._refuse(told)  # type: ignore[arg-type]
        else:
            relocator._asked.pop()[0].set_result(told)

    other = Relocator(worker.session, worker.url, RelocationSettings())
    async with TestServer(make({"decode-0": relocator, "decode-1": other})) as server:
        at = str(server.make_url("/"))
        async with worker.session.get(at) as shown:
            assert [each["state"] for each in (await shown.json()).values()] == ["starting"] * 2
        wrong = (b"", b"[]", b'{"dry_run": 1}', b'{"kind": "eplb"}', b'{"server": "decode-2"}')
        for body in wrong:
            async with worker.session.post(at + "relocate", data=body) as refused:
                assert refused.status == 400
        answering = asyncio.create_task(answer({"outcome": "stays"}))
        body = {"dry_run": True, "server": "decode-0"}  # type: ignore[assignment]
        async with worker.session.post(at + "relocate", json=body) as told:
            assert (told.status, await told.json()) == (200, {"decode-0": {"outcome": "stays"}})
        await answering
        answering = asyncio.create_task(answer(RelocationError("3 requests are too few")))
        async with worker.session.post(at + "relocate", json={"server": "decode-0"}) as told:
            assert told.status == 409 and "too few" in (await told.json())["decode-0"]["error"]
        await answering
        # On all of them: what fails on one does not hide what came of another.
        answering = asyncio.create_task(answer({"outcome": "moved"}))
        asking = asyncio.create_task(worker.session.post(at + "relocate", json={}))
        while not other._asked:
            await asyncio.sleep(0.005)
        other._refuse(RelocationError("it is gone"))
        async with await asking as told:
            found = await told.json()
        assert told.status == 200
        assert found == {"decode-0": {"outcome": "moved"}, "decode-1": {"error": "it is gone"}}
        await answering
        relocator.figures.decisions["stays"] += 1
        other.figures.orders += 3
        async with worker.session.get(at + "metrics") as shown:
            text = await shown.text()
        stays = 'toolkit_relocate_decisions_total{outcome="stays",server="decode-0"} 1.0'
        assert stays in text
        assert 'toolkit_relocate_orders_total{server="decode-1"} 3.0' in text
        assert 'toolkit_relocate_stall_seconds_total{server="decode-0"} 0.0' in text


def test_too_few_requests_leave_the_question_open() -> None:
    online = Online(Topology(4, 2), RelocationSettings())
    with pytest.raises(ValueError, match="0 requests"):
        online.decide(Placement(TABLE, 8, 4), 0.05, Cost(1e6, 1e9, 0.01, 2), "asked")


def heard(**more: Any) -> Any:
    """A tap that has heard of steps of these `seconds` and of requests' experts."""
    seconds = more.pop("seconds", [])
    steps = np.column_stack([np.ones(len(seconds)), seconds])
    found = Heard(columns=("decode", "seconds"), steps={("w", 0): [steps]} if seconds else {})
    found.experts = more.pop("experts", {})
    return SimpleNamespace(heard=found)


def rows(tokens: int, whole: bool = True) -> PhaseRows:
    ids = np.arange(tokens * 6, dtype=np.int16).reshape(tokens, 3, 2)
    return PhaseRows(ids, ("w", 0), 0.0, 4, 0, whole, 0.0)


def test_counts_with_holes_are_left_out() -> None:
    relocator = Relocator(None, "http://w", RelocationSettings())  # type: ignore[arg-type]
    experts = {
        "whole": {"prefill": rows(3), "decode": rows(2)},
        "holes": {"prefill": rows(3, whole=False), "decode": rows(2)},
        "none": {"decode": rows(0)},
    }
    requests, steps = relocator._take(heard(experts=experts), (0, 2))
    assert [len(ids) for ids in requests] == [3, 2, 2] and steps == 0
    assert requests[0].tolist() == rows(3).ids[:, [0, 2]].tolist()


def test_steps_of_a_clock_that_jumps_are_no_steps() -> None:
    relocator = Relocator(None, "http://w", RelocationSettings())  # type: ignore[arg-type]
    relocator._take(heard(seconds=[0.02] * 20), (0, 2))
    assert relocator.status()["step_s"] == 0.02
    odd = [3600.0, -1.0, float("nan"), 0.0, float("inf")]
    _, steps = relocator._take(heard(seconds=odd), (0, 2))
    assert steps == 5 and relocator.status()["step_s"] == 0.02
