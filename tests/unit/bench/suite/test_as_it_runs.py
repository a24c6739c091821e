"""The suite on a router that runs: what is asked, and that it gets its policies back."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from toolkit.bench.errors import BenchError
from toolkit.bench.runner import new_session
from toolkit.bench.suite.as_it_runs import SWITCHED, AsItRuns, questions_at
from toolkit.bench.suite.question import BASE
from toolkit.bench.target import set_policy

POLICIES = {"prefill": "round_robin", "decode": "shortest_queue"}


def state(*ranks: int, **more: Any) -> dict[str, Any]:
    """A prefill worker, and decode servers of so many DP ranks."""
    rows = [{"name": "prefill-0", "role": "prefill", "dp_rank": 0}]
    for number, count in enumerate(ranks):
        rows += [
            {"name": f"decode-{number}", "role": "decode", "dp_rank": rank} for rank in range(count)
        ]
    return {"workers": rows, "policies": POLICIES, "dispatch": "late", **more}


def test_asked_is_what_a_router_can_be_switched_to() -> None:
    asked = questions_at(state(1, 1, eldr={}))
    assert [each.system for each in asked.questions] == list(SWITCHED)
    for question in asked.questions:
        assert {arm.variant for arm in question.arms} == {BASE}
        assert all(arm.policies for arm in question.arms)
    left = {each.system: each.why for each in asked.left_out}
    assert {"preempted prompts", "moves", "stages"} <= left.keys()
    assert "give the deployment file" in left["moves"]


@pytest.mark.parametrize(
    ("seen", "systems"),
    [
        (state(1, 1), ["late dispatch", "level KV"]),
        (state(1), ["late dispatch"]),
        (state(4, eldr={}), ["late dispatch", "level KV"]),  # its ranks share their experts
        (state(2, 2, eldr={}), list(SWITCHED)),
    ],
)
def test_it_goes_by_the_ranks_and_the_centroids(seen: dict[str, Any], systems: list[str]) -> None:
    asked = questions_at(seen)
    assert [each.system for each in asked.questions] == systems
    assert {each.system for each in asked.left_out} >= set(SWITCHED) - set(systems)


@pytest.mark.parametrize("seen", [{}, {"workers": []}, state(1) | {"workers": []}])
def test_what_is_no_router_of_ours_is_said(seen: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="behind this project's router"):
        questions_at(seen)


def test_nobody_answers() -> None:
    with pytest.raises(BenchError, match=r"nothing answers at http://127\.0\.0\.1:1"):
        AsItRuns("http://127.0.0.1:1", None).state()


class Ended(Exception):
    pass


@pytest.mark.parametrize("ends", [None, Ended, KeyboardInterrupt])
async def test_the_router_has_its_own_policies_again_however_it_ends(
    ends: type[BaseException] | None, tmp_path: Path
) -> None:
    config = {"decode_policy": "least_tokens", "prefill_policy": "power_of_two"}
    async with Cluster(config=config) as cluster:
        host = AsItRuns(f"http://127.0.0.1:{cluster.port}", None)
        before, after = await asyncio.to_thread(used, host, tmp_path, ends)
    assert before["policies"]["decode"] == "least_tokens"
    for name in ("policies", "dispatch", "first_token"):
        assert after[name] == before[name], name


def used(
    host: AsItRuns, folder: Path, ends: type[BaseException] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the router says before it was used and switched, and afterwards."""

    async def switch(url: str) -> None:
        async with new_session(60.0, None) as session:
            order = {"decode": "level", "prefill": "random", "dispatch": "concurrent"}
            await set_policy(session, url, order)

    before = host.state()
    with suppress(Ended, KeyboardInterrupt), host(folder / "base.yaml", None) as running:
        asyncio.run(switch(running.router_url))
        assert host.state()["policies"] == {"prefill": "random", "decode": "level"}
        assert host.state()["dispatch"] == "concurrent"
        if ends is not None:
            raise ends
    return before, host.state()
