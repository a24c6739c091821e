"""DP attention behind our router: both ranks of a worker serve, and the other side finds them.

A prefill rank takes only bootstrap rooms of its own (`toolkit.router.request.new_room`), and a
decode worker must fetch the KV from the rank that has it. Ranks of a decode worker: `test_balance`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from tests.e2e.workers import state
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("dp-policies")]

TOKENS = 12
CONCURRENCY = 6
ONE_RANK: dict[str, Any] = {"kv_tokens": 8192, "max_running": 8}
TWO_RANKS = ONE_RANK | {"tp": 2, "dp": 2, "dp_attention": True}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A prefill worker of two ranks and a decode worker; late dispatch."""
    folder: Path = tmp_path_factory.mktemp("dp")
    roles = {"prefill": TWO_RANKS, "decode": ONE_RANK}
    router = {"prefill_policy": "round_robin", "decode_policy": "round_robin"}
    recipe = {"name": "dp", "device": "cpu", "model": "embedded", **roles, "router": router}
    with deployed(recipe, folder) as deployment:
        yield deployment


def counted(now: dict[str, Any], what: str) -> dict[tuple[str, int], int]:
    """`completed` or `failed`, by worker and DP rank."""
    return {(row["name"], row["dp_rank"]): row[what] for row in now["workers"]}


def prompts() -> list[list[int]]:
    """Short ones, one of several chunks, and some that share a beginning."""
    head = calls.prompt("dp-head", 90)
    own = [calls.prompt(f"dp-{n}", 10 + 35 * n) for n in range(9)]
    shared = [head + calls.prompt(f"dp-tail-{n}", 5 + n) for n in range(6)]
    return [*own, calls.prompt("dp-long", 2100), *shared]


def test_both_ranks_serve_and_tokens_stay(up: Running, reference: Reference) -> None:
    both_ranks_serve(up.router_url, reference)


def both_ranks_serve(url: str, reference: Reference) -> None:
    """Requests that both policies give out in turn."""
    before = calls.run(state(url))
    assert len(before["workers"]) == 3
    asked = prompts()
    bodies = [calls.greedy(ids, TOKENS, stream=n % 2 == 0) for n, ids in enumerate(asked)]
    answers = calls.run(calls.all_of(url, bodies, CONCURRENCY))
    assert [answer.error for answer in answers] == [""] * len(bodies)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(asked, TOKENS, said)

    async def off_the_books() -> bool:
        return not any(row["inflight"] for row in (await state(url))["workers"])

    calls.run(calls.until(off_the_books, "every request is off the books"))
    after = calls.run(state(url))
    # The router runs a request again that a worker refused: its client would not notice.
    assert after["retried"] == before["retried"]
    assert counted(after, "failed") == counted(before, "failed")
    first = counted(before, "completed")
    took = {who: count - first[who] for who, count in counted(after, "completed").items()}
    for role in ("prefill", "decode"):
        of_role = [count for (name, _), count in took.items() if name.startswith(role)]
        assert sum(of_role) == len(bodies), took
        assert all(of_role), took
