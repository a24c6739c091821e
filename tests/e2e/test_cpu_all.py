"""launch/cpu-all.yaml: everything that goes together, and each system seen at work beside the
others. Every answer is the one that the model gives alone."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from tests.e2e.test_preempt import BE, LS, ask
from tests.e2e.test_relocation import relocate, skew
from tests.e2e.test_waiting_queue import finished_in
from tests.e2e.workers import metrics, settled, state
from toolkit.launch.running import Running
from toolkit.resources import recipes_dir
from toolkit.settings.load import load_deployment
from toolkit.settings.systems import systems_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.touched("all-systems")]

RECIPE = recipes_dir() / "cpu-all.yaml"
TOKENS, FEW = 48, 24
LONG, SHORT = 3000, 40


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with deployed(RECIPE, tmp_path_factory.mktemp("all")) as running:
        yield running


def test_what_it_says_that_it_turns_on() -> None:
    assert set(systems_of(load_deployment(RECIPE))) == {
        "late dispatch", "first token from prefill", "expert locality", "level KV",
        "Gimbal balance", "shortest prompt first", "classes", "preempted prompts", "moves",
        "relocated experts",
    }  # fmt: skip


async def test_experts_choose_the_server_and_prefills_begin_the_streams(
    up: Running, reference: Reference
) -> None:
    prompts = [calls.prompt(f"all-{n}", 60 + 10 * n) for n in range(12)]
    bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in prompts]
    answers = await calls.all_of(up.router_url, bodies, 6)
    assert [answer.error for answer in answers] == [""] * len(answers)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(prompts, TOKENS, said)
    now = await state(up.router_url)
    assert now["policies"] == {"prefill": "gimbal", "decode": "composed@eldr+level"}
    assert now["eldr"]["centroids"] == 2, "one for each decode server"
    assert now["eldr"]["located"] >= len(bodies), "by their experts"
    assert (await metrics(up.router_url))["toolkit_router_early_total"] >= len(bodies)
    served = {row["name"] for row in now["workers"] if row["role"] == "decode" and row["completed"]}
    assert served == {"decode-0", "decode-1"}


async def test_a_user_s_prompts_go_to_one_prefill_worker(up: Running) -> None:
    """Gimbal's affinity; both serve those who have no user."""

    async def completed() -> dict[str, int]:
        rows = (await state(up.router_url))["workers"]
        return {row["name"]: row["completed"] for row in rows if row["role"] == "prefill"}

    async def more(user: str) -> list[int]:
        before = await completed()
        keyed = {"routing_key": user} if user else {}
        for number in range(6):
            body = calls.greedy(calls.prompt(f"{user}-{number}", 40), 2, stream=False) | keyed
            (answer,) = await calls.all_of(up.router_url, [body], 1)
            assert not answer.error
        after = await completed()
        return sorted(after[name] - before[name] for name in after)

    assert await more("somebody") == [0, 6]
    assert min(await more("")) > 0


async def test_a_short_prompt_is_not_behind_the_long_ones(
    up: Running, reference: Reference
) -> None:
    """Seven longer ones and a short one of one user. They leave a tenth of its prefill worker's KV
    free, so that Gimbal sends none of them to the other one."""
    longer = [calls.prompt(f"queue-{n}", 1900) for n in range(7)]
    asked = [*longer, calls.prompt("queue", SHORT)]
    keyed = {"routing_key": "queue"}
    first = calls.greedy(calls.prompt("queue-first", SHORT), 1, stream=False)
    await calls.all_of(up.router_url, [first | keyed], 1)
    bodies = [calls.greedy(ids, 1, stream=False) | keyed for ids in asked]
    order, answers = await finished_in(up.router_url, bodies)
    assert [answer.error for answer in answers] == [""] * len(answers)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(asked, 1, said)
    assert order.index(len(asked) - 1) <= 3


async def test_a_best_effort_prompt_gives_way(up: Running, reference: Reference) -> None:
    url, user = up.router_url, "hurry"  # a user's prompts meet in one prefill worker
    async with calls.session() as http:
        for turn in range(3):
            long, short = calls.prompt(f"long-{turn}", LONG), calls.prompt(f"short-{turn}", SHORT)
            effort = asyncio.create_task(ask(http, url, long, BE, user=user))
            await asyncio.sleep(0.3)
            hurry = await ask(http, url, short, LS, user=user)
            done = await effort
            assert hurry[0] == reference.greedy(short, len(hurry[0]), hurry[0])
            assert done[0] == reference.greedy(long, len(done[0]), done[0])
            given = await metrics(url)
            ways = 'toolkit_router_gave_way_total{{kind="prompt",worker="{}"}}'
            if any(given.get(ways.format(f"prefill-{n}")) for n in range(2)):
                break
        else:
            raise AssertionError("no prompt was stopped")
    await settled(up)


async def test_a_heavy_rank_hands_requests_on(up: Running, reference: Reference) -> None:
    prompts = [calls.prompt(f"heavy-{n}", 100) for n in range(8)]
    bodies = [calls.greedy(ids, 4 * TOKENS, stream=True) for ids in prompts]
    ranks = [f"decode-{server}:{rank}" for server in (0, 1) for rank in (0, 1)]

    async def hold(name: str, **how: Any) -> None:
        async with (
            calls.session() as http,
            http.post(up.admin_url + "/admin/drain", json={"worker": name, **how}) as answer,
        ):
            assert answer.status == 200, await answer.text()

    for name in ranks[1:]:
        await hold(name, deadline_s=0)
    sending = asyncio.create_task(calls.all_of(up.router_url, bodies, len(bodies)))

    async def crowded() -> bool:
        assert not sending.done(), "the load ended before it had begun on one rank"
        rows = (await state(up.router_url))["workers"]
        return [row["inflight"] for row in rows if row["role"] == "decode"] == [8, 0, 0, 0]

    await calls.until(crowded, "all run on one rank")
    for name in ranks[1:]:
        await hold(name, undo=True)
    answers = await sending
    assert [answer.error for answer in answers] == [""] * len(answers)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(prompts, 4 * TOKENS, said)
    moves = (await state(up.router_url))["moves"]["outcomes"]
    assert sum(m["count"] for m in moves if (m["outcome"], m["why"]) == ("moved", "level")) >= 1
    assert not [m for m in moves if m["outcome"] == "lost"]


async def test_experts_move_while_it_answers(up: Running, reference: Reference) -> None:
    """The busiest experts are put on one rank; `toolkit relocate` makes the ranks even again."""
    prompts = [calls.prompt(f"experts-{n % 5}", 40) for n in range(25)]
    bodies = [calls.greedy(ids, FEW, stream=True) for ids in prompts]
    wanted = [reference.greedy(ids, FEW) for ids in prompts]
    url = str(next(worker.url for worker in up.workers if worker.name == "decode-0"))
    await skew(url, wanted, reference)
    answers: list[calls.Answer] = []
    watching = True

    async def load() -> None:
        while watching or not answers:
            answers.extend(await calls.all_of(up.router_url, bodies, len(bodies)))

    serving = asyncio.create_task(load())
    try:
        told = await relocate(up, url)
    finally:
        watching = False
        await serving
    assert told["outcome"] == "moved" and told["bytes"] > 0, told
    assert [answer.error for answer in answers] == [""] * len(answers)
    assert [answer.ids for answer in answers] == wanted * (len(answers) // len(wanted))
    await settled(up)
    assert [worker.restarts for worker in up.workers] == [0] * len(up.workers)
