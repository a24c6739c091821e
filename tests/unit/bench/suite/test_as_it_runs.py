"""The suite on a router that runs: what is asked, and that it gets its policies back."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.test_notices import signal_all
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
        AsItRuns(["http://127.0.0.1:1"], None).states()


class Ended(Exception):
    pass


@pytest.mark.parametrize("ends", [None, Ended, KeyboardInterrupt])
async def test_each_router_has_its_own_policies_again_however_it_ends(
    ends: type[BaseException] | None, tmp_path: Path
) -> None:
    config = {"decode_policy": "least_tokens", "prefill_policy": "power_of_two"}
    async with Cluster(config=config) as one, Cluster(beside=one) as other:
        host = AsItRuns([one.url, other.url], None)
        before, after = await asyncio.to_thread(used, host, tmp_path, ends)
    first, second = (each["policies"]["decode"] for each in before)
    assert first == "least_tokens" != second
    for was, now in zip(before, after, strict=True):
        for name in ("policies", "dispatch", "first_token"):
            assert now[name] == was[name], name


async def test_a_router_that_has_gone_keeps_no_other_one_from_its_own_policies(
    tmp_path: Path,
) -> None:
    config = {"decode_policy": "least_tokens"}

    def use(host: AsItRuns, gone: Cluster) -> None:
        with host(tmp_path / "base.yaml", None):
            asyncio.run(switch(other.url))
            signal_all(gone, signal.SIGKILL)

    async with Cluster(config=config) as one, Cluster(config=config, beside=one) as other:
        with pytest.raises(BenchError, match=f"{one.url} has not got its own"):
            await asyncio.to_thread(use, AsItRuns([one.url, other.url], None), one)
        assert (await other.state())["policies"]["decode"] == "least_tokens"


async def switch(url: str) -> None:
    async with new_session(60.0, None) as session:
        order = {"decode": "level", "prefill": "random", "dispatch": "concurrent"}
        await set_policy(session, url, order)


def used(
    host: AsItRuns, folder: Path, ends: type[BaseException] | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the routers say before they were used and switched, and afterwards."""
    before = host.states()
    with suppress(Ended, KeyboardInterrupt), host(folder / "base.yaml", None) as running:
        for url in running.router_urls:
            asyncio.run(switch(url))
        for now in host.states():
            assert now["policies"] == {"prefill": "random", "decode": "level"}
            assert now["dispatch"] == "concurrent"
        if ends is not None:
            raise ends
    return before, host.states()
