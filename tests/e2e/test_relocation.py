"""Experts move between the ranks of a decode server while it answers; answers stay the same."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed, shipped
from tests.e2e.reference import Reference
from tests.sizes import size
from toolkit.contract.paths import PLACEMENT
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch.running import Running
from toolkit.placement import Placement, Topology
from toolkit.placement.relocation import steps

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("relocation")]

MOVES, TOKENS, FEW, MOST = size(change=8, whole=20), 48, 24, 4


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with deployed(shipped("cpu-experts"), tmp_path_factory.mktemp("relocation")) as running:
        yield running


def decode(up: Running) -> str:
    (url,) = [worker.url for worker in up.workers if worker.role == "decode"]
    assert url is not None
    return url


async def call(url: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    async with calls.session() as http:
        how = http.get(url + PLACEMENT) if body is None else http.post(url + PLACEMENT, json=body)
        async with how as answer:
            return answer.status, await answer.json()


async def eldr(up: Running, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the router says of ELDR, as soon as it is as wanted."""
    async with calls.session() as http:
        for _ in range(100):
            async with http.get(up.router_url + "/workers") as answer:
                found: dict[str, Any] = (await answer.json())["eldr"]
            if wanted(found):
                return found
            await asyncio.sleep(0.1)
    raise AssertionError(found)


def placement(state: dict[str, Any]) -> Placement:
    rows = [state["layers"][str(layer)] for layer in range(len(state["layers"]))]
    return Placement(np.array(rows), state["experts"], state["gpus"])


def shuffled(old: Placement, seed: int) -> Placement:
    rng = np.random.default_rng(seed)
    return Placement(rng.permuted(old.physical_to_logical, axis=1), old.experts, old.gpus)


def order(state: dict[str, Any], rows: dict[int, tuple[int, ...]]) -> dict[str, Any]:
    return {
        "serial": state["serial"],
        "layers": {str(layer): list(row) for layer, row in rows.items()},
    }


async def test_answers_stay_the_same_while_experts_move(up: Running, reference: Reference) -> None:
    prompts = [calls.prompt(f"relocation-{n}", 20 + 5 * n) for n in range(24)]
    bodies = [calls.greedy(prompt, TOKENS, stream=n % 2 == 0) for n, prompt in enumerate(prompts)]
    _, state = await call(decode(up))
    assert (state["obstacle"], state["dispatch"], state["gpus"]) == ("", "dynamic", 2)
    before = await eldr(up, lambda found: found["maps"] == {"decode-0": {"serial": 0}})
    now = placement(state)
    queue = steps(now, shuffled(now, 1), Topology(2), MOST)
    assert len(queue) > MOVES
    done: list[dict[str, Any]] = []
    answers: list[list[calls.Answer]] = []
    moving = True

    async def load() -> None:
        while moving or not answers:
            answers.append(await calls.all_of(up.router_url, bodies, 8))

    serving = asyncio.create_task(load())
    await asyncio.sleep(0.5)
    for step in queue[:MOVES]:
        status, told = await call(decode(up), order(state, step.rows))
        assert status == 200, told
        done.append(told)
        state["serial"] = told["serial"]
        await asyncio.sleep(0.1)
    moving = False
    await serving
    answers.append(await calls.all_of(up.router_url, bodies, 8))
    _, after = await call(decode(up))
    table = np.array(now.physical_to_logical)
    for step in queue[:MOVES]:
        for layer, row in step.rows.items():
            table[layer] = row
    assert (placement(after).physical_to_logical == table).all()
    last = await eldr(up, lambda found: found["maps"]["decode-0"]["serial"] == MOVES)
    assert last["mapped"] > before["mapped"] and not last["unmapped"], last
    done, answers = done, answers
    wanted = reference.greedy_each(prompts, TOKENS, [answer.ids for answer in answers[0]])
    for each in answers:
        assert [answer.error for answer in each] == [""] * len(bodies)
        assert [answer.ids for answer in each] == wanted
    assert [told["serial"] for told in done] == list(range(1, MOVES + 1))
    assert sum(told["bytes"] for told in done) > 0


def test_wrong_orders_change_nothing_and_say_why(up: Running, reference: Reference) -> None:
    async def main() -> list[tuple[int, str]]:
        url = decode(up)
        _, state = await call(url)
        row = state["layers"]["1"]
        wrong: list[Any] = [
            [],
            {"serial": state["serial"], "layers": {"one": row}},
            {"serial": state["serial"], "layers": {"1": [*row[:-1], "x"]}},
            {"serial": state["serial"], "layers": {"999": row}},
            {"serial": state["serial"], "layers": {"1": row[:-2]}},
            {"serial": state["serial"], "layers": {"0": row, "1": [row[0]] * len(row)}},
            {"serial": state["serial"] - 1, "layers": {"1": row}},
        ]
        told = [await call(url, body) for body in wrong]
        both = await asyncio.gather(*(call(url, order(state, {1: tuple(row)})) for _ in range(2)))
        assert sorted(status for status, _ in both) == [200, 409]
        _, after = await call(url)
        # Whoever only asks (the router does after each change) is in no order's way.
        again = order(after, {1: tuple(row)})
        told_all = await asyncio.gather(call(url), call(url), call(url, again))
        assert [status for status, _ in told_all] == [200] * 3
        assert after["layers"] == state["layers"]
        return [(status, body["error"]) for status, body in told]

    told = calls.run(main())
    assert [status for status, _ in told] == [400, 400, 400, 409, 409, 409, 409]
    for (_, error), expected in zip(
        told,
        ["an order is", "no number of a layer", "list of expert numbers", "has no experts here",
         "slots, the order has", "needs a slot", "the order builds on"],
        strict=True,
    ):  # fmt: skip
        assert expected in error
    prompt = calls.prompt("after", 40)
    (answer,) = calls.run(calls.all_of(up.router_url, [calls.greedy(prompt, 8, False)], 1))
    assert answer.ids == reference.greedy(prompt, 8, answer.ids)


async def test_the_relocator_moves_what_pays_and_then_rests(
    up: Running, reference: Reference
) -> None:
    """The busiest experts on one GPU are made even; traffic that stays then moves nothing."""
    # Few prompts, again and again: what their even ones are placed by holds for the odd ones.
    prompts = [calls.prompt(f"relocator-{n % 5}", 40) for n in range(25)]
    bodies = [calls.greedy(prompt, FEW, stream=True) for prompt in prompts]
    wanted = [reference.greedy(prompt, FEW) for prompt in prompts]
    await skew(decode(up), wanted, reference)
    answers: list[calls.Answer] = []
    watching = True

    async def load() -> None:
        while watching:
            answers.extend(await calls.all_of(up.router_url, bodies, len(bodies)))

    serving = asyncio.create_task(load())
    try:
        told = [await relocate(up, decode(up), *more) for more in (("--dry-run",), (), ())]
    finally:
        watching = False
        await serving
    would, moved, rest, answers = told[0], told[1], told[2], answers
    assert would["outcome"] == "would move", would
    assert moved["outcome"] == "moved", moved
    assert moved["balance"][1] < moved["balance"][0] and moved["bytes"] > 0
    assert rest["outcome"] == "stays", rest
    assert [answer.error for answer in answers] == [""] * len(answers)
    assert [answer.ids for answer in answers] == wanted * (len(answers) // len(wanted))


async def skew(url: str, wanted: list[list[int]], reference: Reference) -> None:
    """Put the experts that these tokens use most on the server's first rank."""
    _, state = await call(url)
    layers = range(len(state["layers"]))
    used = sum(reference.counts(out, layers) for out in wanted)
    busiest = np.argsort(-np.asarray(used), axis=1)
    half = len(state["layers"]["0"]) // 2
    skewed = np.concatenate([busiest[:, :half], busiest[:, -half:]], axis=1).tolist()
    status, told = await call(url, order(state, {n: tuple(skewed[n]) for n in layers}))
    assert status == 200, told


async def relocate(up: Running, url: str, *more: str) -> dict[str, Any]:
    """One decision of `toolkit relocate`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolkit", "relocate", url, "--once", "--share", "1"),
        *("--tokens", "1152", "--every", "100000", *more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {WORKER_KEY_VARIABLE: up.worker_key or ""},
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-2000:]
    return json.loads(out.splitlines()[-1])


def test_a_killed_server_comes_back_with_the_last_complete_map(
    up: Running, reference: Reference
) -> None:
    async def main() -> tuple[list[list[int]], dict[str, Any]]:
        url = decode(up)
        _, state = await call(url)
        now = placement(state)
        first, second, *_ = steps(now, shuffled(now, 2), Topology(2), 60)
        status, told = await call(url, order(state, first.rows))
        assert status == 200, told
        state["serial"] = told["serial"]
        asked = asyncio.create_task(call(url, order(state, second.rows)))
        await asyncio.sleep(0.002)
        os.kill(scheduler(up), signal.SIGKILL)
        with contextlib.suppress(aiohttp.ClientError):  # it may have been quicker
            await asked
        kept = json.loads((up.run_dir / "decode-0.experts.json").read_text())
        for _ in range(600):
            with contextlib.suppress(aiohttp.ClientError):
                status, after = await call(url)
                if status == 200:
                    return kept["physical_to_logical_map"], after
            await asyncio.sleep(0.2)
        raise AssertionError("the decode server did not come back")

    kept, after = calls.run(main())
    assert after["serial"] == 0
    assert placement(after).physical_to_logical.tolist() == kept
    prompt = calls.prompt("again", 40)
    (answer,) = calls.run(calls.all_of(up.router_url, [calls.greedy(prompt, 8, False)], 1))
    assert answer.ids == reference.greedy(prompt, 8, answer.ids)


def scheduler(up: Running) -> int:
    """A scheduler of the decode server."""
    pid = up.worker("decode-0").pid
    assert pid is not None
    children = psutil.Process(pid).children(recursive=True)
    return int(next(each.pid for each in children if "scheduler" in " ".join(each.cmdline())))


def test_each_decode_server_starts_with_its_clusters_experts_placed(
    tmp_path: Path, reference: Reference
) -> None:
    """Two servers with redundant experts: each has the map that the plan made for its cluster, and
    answers as one without."""
    role = {"kv_tokens": 8192, "max_running": 16}
    ranks = {"tp": 2, "ep": 2, "replicas": 2, "relocate": True, "expert_placement": "clusters"}
    described = {
        "name": "clusters", "device": "cpu", "model": "embedded", "prefill": role,
        "decode": {**role, **ranks, "args": {"ep-num-redundant-experts": 4}},
        "router": {"decode_policy": "eldr", "profile": "embedded"},
    }  # fmt: skip
    prompts = [calls.prompt(f"clusters-{n}", 20 + 5 * n) for n in range(12)]
    bodies = [calls.greedy(prompt, 16, stream=n % 2 == 0) for n, prompt in enumerate(prompts)]
    with deployed(described, tmp_path) as up:
        maps = []
        for worker in up.workers:
            if worker.role == "decode":
                assert worker.url is not None
                status, state = calls.run(call(worker.url))
                assert (status, state["dispatch"], state["obstacle"]) == (200, "dynamic", "")
                file = up.run_dir / f"{worker.name}.placed.json"
                kept = json.loads(file.read_text())["physical_to_logical_map"]
                assert placement(state).physical_to_logical.tolist() == kept
                maps.append(kept)
        assert maps[0] != maps[1]
        answers = calls.run(calls.all_of(up.router_url, bodies, 6))
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(prompts, 16, said)
