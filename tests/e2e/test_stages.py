"""Stages and levels on real workers: requests move while they run, and say the same tokens."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed, shipped
from tests.e2e.reference import Reference
from tests.e2e.workers import state
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.touched("stages")]

UPTO = 150
TOKENS = 96
SIZES: dict[str, Any] = {"kv_tokens": 8192, "max_running": 12}


def _deployment(decode: dict[str, Any], **router: Any) -> dict[str, Any]:
    return {
        "name": "stages",
        "device": "cpu",
        "model": "embedded",
        "prefill": {"kv_tokens": 16384, "max_running": 24},
        "decode": SIZES | decode,
        "router": router,
    }


def _inflight(state: dict[str, Any]) -> list[int]:
    return [row["inflight"] for row in state["workers"] if row["role"] == "decode"]


def _moved(state: dict[str, Any]) -> dict[str, int]:
    """By reason; anything else than `moved` is there by its name."""
    found: dict[str, int] = {}
    for each in state["moves"]["outcomes"]:
        how = each["why"] if each["outcome"] == "moved" else each["outcome"]
        found[how] = found.get(how, 0) + each["count"]
    return found


def test_requests_that_outgrow_their_stage_go_on_in_the_next(
    tmp_path: Path, reference: Reference
) -> None:
    lengths = [20, 40, 60, 80, 100, 120, 140, 151, 200, 300]
    asked = [calls.prompt(f"stages-{n}", length) for n, length in enumerate(lengths)]
    bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in asked]

    async def main(up: Running) -> tuple[list[calls.Answer], dict[str, Any]]:
        answers = await calls.all_of(up.router_url, bodies, len(bodies))
        return answers, await state(up.router_url)

    # Bounds that short answers of a test outgrow, and looks that see them in time.
    bounds = {"stages": [{"upto": UPTO}, {}]}
    moves = {"every_s": 0.05, "refine_s": 0, "replan_s": 0}
    short = shipped("cpu-stages", decode=bounds, router={"rebalance": moves})
    with deployed(short, tmp_path) as up:
        answers, after = calls.run(main(up))
    assert [answer.error for answer in answers] == [""] * len(bodies)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(asked, TOKENS, said)
    rows = [row for row in after["workers"] if row["role"] == "decode"]
    assert [row["range"] for row in rows] == [f"1-{UPTO}", f"{UPTO + 1}-"]
    moved = _moved(after)
    assert "lost" not in moved
    # Some may have ended before a look saw them outgrow.
    outgrown = [length for length in lengths if length <= UPTO < length + TOKENS]
    assert len(outgrown) - 3 <= moved.get("outgrown", 0) <= len(outgrown)
    assert rows[0]["failed"] == rows[1]["failed"] == 0


def test_stages_follow_the_lengths_that_come(tmp_path: Path, reference: Reference) -> None:
    """The file as it ships: all are longer than its first stage, until the stages know that."""
    asked = [calls.prompt(f"follow-{n}", 300 + 16 * n) for n in range(10)]
    bodies = [calls.greedy(ids, 2 * TOKENS, stream=True) for ids in asked]

    async def main(up: Running) -> tuple[list[list[calls.Answer]], dict[str, Any]]:
        answers: list[list[calls.Answer]] = []
        for _ in range(12):
            answers.append(await calls.all_of(up.router_url, bodies, len(bodies)))
            now = await state(up.router_url)
            changed = now["rebalance"]["restaged"]
            served = [row["completed"] for row in now["workers"] if row["role"] == "decode"]
            if min(served) and changed.get("refined") and changed.get("replanned"):
                break
        return answers, now

    with deployed(shipped("cpu-stages"), tmp_path) as up:
        answers, now = calls.run(main(up))
    assert [answer.error for each in answers for answer in each] == [""] * 10 * len(answers)
    wanted = reference.greedy_each(asked, 2 * TOKENS, [answer.ids for answer in answers[0]])
    assert [[answer.ids for answer in each] for each in answers] == [wanted] * len(answers)
    changed = now["rebalance"]["restaged"]
    assert changed["refined"] and changed["replanned"], now["rebalance"]
    upto = now["stages"][0]["upto"]  # None: one stage, as both workers share these lengths best
    assert upto is None or upto > 300, "the first stage has some of these lengths now"
    rows = [row for row in now["workers"] if row["role"] == "decode"]
    assert all(row["completed"] for row in rows)
    assert "lost" not in _moved(now)


def test_a_heavy_dp_rank_hands_requests_to_the_other(tmp_path: Path, reference: Reference) -> None:
    asked = [calls.prompt(f"level-{n}", 100) for n in range(6)]
    bodies = [calls.greedy(ids, 2 * TOKENS, stream=True) for ids in asked]

    async def hold(up: Running, **body: Any) -> None:
        order = {"worker": "decode-0:1", **body}
        at = up.admin_url + "/admin/drain"
        async with calls.session() as http, http.post(at, json=order) as answer:
            assert answer.status == 200, await answer.text()

    async def main(up: Running) -> tuple[list[calls.Answer], dict[str, Any], list[int]]:
        await hold(up, deadline_s=0)
        sending = asyncio.create_task(calls.all_of(up.router_url, bodies, len(bodies)))

        async def crowded() -> bool:
            assert not sending.done(), "the load ended before the ranks were level"
            return _inflight(await state(up.router_url)) == [6, 0]

        await calls.until(crowded, "all run on one rank")
        await hold(up, undo=True)
        seen: list[int] = []

        async def level() -> bool:
            assert not sending.done(), "the load ended before the ranks were level"
            seen[:] = _inflight(await state(up.router_url))
            return min(seen) >= 2

        await calls.until(level, "the ranks are level")
        answers = await sending
        return answers, await state(up.router_url), seen

    with deployed(_deployment({"dp": 2}, rebalance={"every_s": 0.05}), tmp_path) as up:
        answers, after, _ = calls.run(main(up))
    assert [answer.error for answer in answers] == [""] * len(bodies)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(asked, 2 * TOKENS, said)
    moved = _moved(after)
    assert moved.get("level", 0) >= 2 and "lost" not in moved
