"""Greedy outputs through PD and the router equal a single plain SGLang server's, by token."""

from collections.abc import Iterator

import pytest

from tests import scope
from tests.e2e import calls
from tests.e2e.workers import state
from toolkit.launch.running import Running
from toolkit.policies import policy_names

pytestmark = pytest.mark.e2e

TOKENS = 16
CONCURRENCY = 8


def prompts() -> list[list[int]]:
    """Fifty prompts: short, longer than a prefill chunk (512), sharing prefixes, and repeated."""
    short = [calls.prompt(f"short-{n}", 3 + 2 * n) for n in range(20)]
    long = [calls.prompt(f"long-{n}", 900 + 300 * n) for n in range(5)]
    shared = calls.prompt("shared", 250)
    hits = [shared[: 100 + 10 * n] + calls.prompt(f"tail-{n}", n) for n in range(15)]
    return short + long + hits + short[:5] + hits[:5]


def every(step: int) -> list[int]:
    """Numbers of prompts: of each kind some."""
    return list(range(0, len(prompts()), step))


@pytest.fixture(scope="module")
def expected(plain_server: str) -> list[list[int]]:
    """What a plain server answers to each prompt, one at a time and without a prefix cache."""
    bodies = [calls.greedy(ids, TOKENS, stream=False) for ids in prompts()]
    answers = calls.run(calls.all_of(plain_server, bodies, concurrency=1))
    assert [answer.error for answer in answers] == [""] * len(bodies)
    assert all(len(answer.ids) == TOKENS for answer in answers)
    assert len({tuple(answer.ids) for answer in answers}) > 30, "a degenerate model proves nothing"
    return [answer.ids for answer in answers]


@pytest.fixture
def restored(deployment: Running) -> Iterator[None]:
    """Put the router's policies back after a test."""

    before = calls.run(state(deployment.router_url))
    yield
    policies = {**before["policies"], "dispatch": before["dispatch"]}
    calls.run(calls.switch(deployment.router_url, **policies))


SETTINGS = [
    *({"decode": name, "dispatch": "late"} for name in policy_names("decode")),
    *({"prefill": name, "dispatch": "late"} for name in policy_names("prefill")),
    {"decode": "round_robin", "dispatch": "concurrent"},
]


WHOLE = ({"decode": "shortest_queue", "dispatch": "late"}, SETTINGS[-1])
"""With all prompts for a change, too: a policy changes no token by itself, whatever the prompt."""


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    "setting", SETTINGS, ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items())
)
def test_fifty_prompts_give_the_plain_servers_tokens(
    deployment: Running, expected: list[list[int]], setting: dict[str, str]
) -> None:
    calls.run(calls.switch(deployment.router_url, **setting))
    # Half of the requests stream; which half alternates with the setting.
    odd = SETTINGS.index(setting) % 2
    asked = prompts()
    numbers = every(1 if setting in WHOLE else scope.size(change=5, whole=1))
    bodies = [calls.greedy(asked[n], TOKENS, stream=n % 2 == odd) for n in numbers]
    answers = calls.run(calls.all_of(deployment.router_url, bodies, CONCURRENCY))
    assert [answer.error for answer in answers] == [""] * len(bodies)
    got = {n: answer.ids for n, answer in zip(numbers, answers, strict=True)}
    assert [n for n in numbers if got[n] != expected[n]] == []


async def test_both_decode_workers_took_part(
    deployment: Running, expected: list[list[int]]
) -> None:
    async def completed() -> dict[str, int]:
        rows = (await state(deployment.router_url))["workers"]
        return {row["name"]: row["completed"] for row in rows if row["role"] == "decode"}

    before = await completed()
    bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in prompts()[:10]]
    answers = await calls.all_of(deployment.router_url, bodies, CONCURRENCY)
    assert [answer.ids for answer in answers] == expected[:10]
    after = await completed()
    assert all(after[name] > before[name] for name in after), (before, after)
