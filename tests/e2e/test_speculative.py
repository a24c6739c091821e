"""launch/cpu-speculative.yaml: a draft proposes tokens, and every answer is what the model says
alone, through moves and kills."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.moving import migrate
from tests.e2e.reference import Reference
from tests.e2e.test_experts import captured, check, token_ids
from tests.e2e.test_preempt import BE, LS, ask
from tests.e2e.workers import metrics, settled, state, victim
from toolkit.embedded import load_prompts, model_path
from toolkit.launch.running import Running
from toolkit.resources import recipes_dir
from toolkit.settings.yaml_lines import read_document

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.touched("speculative")]

RECIPE = recipes_dir() / "cpu-speculative.yaml"
TOKENS, LONG = 48, 300


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with deployed(RECIPE, tmp_path_factory.mktemp("speculative")) as running:
        yield running


def chats(count: int) -> list[list[int]]:
    """Token ids of some of the project's prompts, as its model is asked them."""
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(str(model_path() / "tokenizer.json")).encode
    short = [prompt for prompt in load_prompts() if "-long-" not in prompt.id]
    chosen = short[:: max(1, len(short) // count)][:count]
    form = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [list(encode(form.format(prompt.text)).ids) for prompt in chosen]


async def decoded(url: str) -> dict[str, float]:
    """Sums over all decode steps so far."""
    found = await metrics(url)
    return {
        name: sum(v for key, v in found.items() if key.startswith(f"toolkit_router_decode_{name}"))
        for name in ("step_requests_total", "step_tokens_total", "distinct_experts_total")
    }


async def test_it_says_what_the_model_says_alone_in_fewer_steps(
    up: Running, reference: Reference
) -> None:
    prompts = chats(24)
    bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in prompts]
    before = await decoded(up.router_url)
    answers = await calls.all_of(up.router_url, bodies, 8)
    assert [answer.error for answer in answers] == [""] * len(answers)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(prompts, TOKENS, said)
    # Each request's first token is the prefill's.
    wanted = sum(map(len, said)) - len(said)

    async def all_told() -> bool:
        return await tokens() == wanted

    async def tokens() -> float:
        now = await decoded(up.router_url)
        return now["step_tokens_total"] - before["step_tokens_total"]

    await calls.until(all_told, f"decode steps have told of {wanted} tokens")
    now = await decoded(up.router_url)
    steps = now["step_requests_total"] - before["step_requests_total"]
    assert wanted / steps > 1.3, f"{wanted / steps:.2f} tokens a step"
    assert now["distinct_experts_total"] > before["distinct_experts_total"]
    known = await state(up.router_url)
    assert (await metrics(up.router_url))["toolkit_router_early_total"] >= len(bodies)
    assert not known["eldr"]["problems"], "signatures came with all prefills"


async def test_experts_of_accepted_tokens_are_those_of_the_model(
    up: Running, reference: Reference
) -> None:
    """A rejected token's are written over; those of an accepted chain stay."""
    prompts = token_ids()[:8]
    for prompt, (output, rows) in zip(prompts, await captured(up, prompts, 4), strict=True):
        check(reference, prompt, output, rows)


async def test_log_probabilities_are_of_the_tokens_that_were_accepted(
    up: Running, reference: Reference
) -> None:
    prompts = chats(4)
    async with calls.session() as http:
        for ids in prompts:
            body = calls.greedy(ids, TOKENS, stream=False) | {"return_logprob": True}
            async with http.post(up.router_url + "/generate", json=body) as response:
                assert response.status == 200, await response.text()
                answer = await response.json()
            told = answer["meta_info"]["output_token_logprobs"]
            said = [token for _, token, _ in told]
            assert said == answer["output_ids"] == reference.greedy(ids, TOKENS, said)
            wanted = reference.log_probabilities(ids, said)
            assert [value for value, _, _ in told] == pytest.approx(wanted, abs=2e-3)
            assert 1.0 < answer["meta_info"]["spec_accept_length"] <= 4.1


async def test_the_overlap_scheduler_runs_as_it_does_on_gpus(up: Running) -> None:
    for worker in up.workers:
        async with calls.session() as http, http.get(worker.url + "/server_info") as answer:
            assert (await answer.json())["disable_overlap_schedule"] is False, worker.name


async def test_streams_that_move_never_change(up: Running, reference: Reference) -> None:
    """Eight streams, three moves of each, over and back again: KV of the draft goes along."""
    prompts = [calls.prompt(f"moved-{n}", 80 + 20 * n) for n in range(8)]
    bodies = [
        calls.greedy(ids, LONG, stream=True) | {"rid": f"moved-{n}"}
        for n, ids in enumerate(prompts)
    ]
    sending = asyncio.create_task(calls.all_of(up.router_url, bodies, len(bodies)))
    outcomes: list[dict[str, Any]] = []
    async with calls.session() as http:
        for _ in range(3):
            await asyncio.sleep(1.0)
            for number in range(len(bodies)):
                outcomes += await migrate(http, up, rid=f"moved-{number}")
    answers = await sending
    assert [answer.error for answer in answers] == [""] * len(answers)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(prompts, LONG, said)
    direct = [
        each for each in outcomes if (each["outcome"], each.get("kind")) == ("moved", "direct")
    ]
    assert len(direct) >= len(bodies), outcomes
    assert not [each for each in outcomes if each["outcome"] == "lost"]


@pytest.mark.parametrize("process", ["scheduler", "server"])
async def test_a_killed_decode_worker_costs_no_token(
    up: Running, reference: Reference, process: str
) -> None:
    await settled(up)
    prompts = [calls.prompt(f"killed-{process}-{n}", 60) for n in range(8)]
    bodies = [calls.greedy(ids, LONG, stream=True) for ids in prompts]
    sending = asyncio.create_task(calls.all_of(up.router_url, bodies, len(bodies)))

    async def both_decode() -> bool:
        rows = (await state(up.router_url))["workers"]
        return all(row["inflight"] >= 2 for row in rows if row["role"] == "decode")

    await calls.until(both_decode, "both decode workers run some")
    await asyncio.sleep(1.0)
    os.kill(victim(up, "decode-0", process), signal.SIGKILL)
    answers = await sending
    assert [answer.error for answer in answers] == [""] * len(answers)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(prompts, LONG, said)
    assert (await state(up.router_url))["resumed"] >= 1
    await settled(up)


def with_draft(recipe: str, folder: Path, **decode: Any) -> Path:
    """A recipe with the draft, and other values of keys of its decode workers."""
    document, _ = read_document(recipes_dir() / f"{recipe}.yaml")
    document["speculative"] = {"draft": "embedded"}
    document["decode"] |= decode
    path = folder / "draft.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    return path


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """cpu-classes with the draft, and two places on decode."""
    folder = tmp_path_factory.mktemp("speculative-classes")
    with deployed(with_draft("cpu-classes", folder, max_running=2), folder) as running:
        yield running


async def gave_way(up: Running, kind: str, worker: str) -> float:
    name = f'toolkit_router_gave_way_total{{kind="{kind}",worker="{worker}"}}'
    return (await metrics(up.router_url)).get(name, 0.0)


async def test_a_prompt_that_stops_between_layers_leaves_the_draft_as_it_was(
    classes: Running, reference: Reference
) -> None:
    """The other prompt's own draft runs between two layers of this one's."""
    async with calls.session() as http:
        for turn in range(4):
            long, short = calls.prompt(f"long-{turn}", 3000), calls.prompt(f"short-{turn}", 40)
            effort = asyncio.create_task(ask(http, classes.router_url, long, BE, 24))
            await asyncio.sleep(0.4)
            hurry = await ask(http, classes.router_url, short, LS, 24)
            done = await effort
            assert hurry[0] == reference.greedy(short, 24, hurry[0])
            assert done[0] == reference.greedy(long, 24, done[0])
            if await gave_way(classes, "prompt", "prefill-0"):
                return
    raise AssertionError("no prompt was stopped")


async def test_an_answer_that_is_put_aside_goes_on_as_it_would_have(
    classes: Running, reference: Reference
) -> None:
    prompts = [calls.prompt(f"aside-{n}", 60) for n in range(2)]
    hurried = calls.prompt("aside-hurry", 40)
    async with calls.session() as http:
        efforts = [asyncio.create_task(ask(http, classes.router_url, p, BE, 400)) for p in prompts]

        async def full() -> bool:
            rows = (await state(classes.router_url))["workers"]
            return sum(r["inflight"] for r in rows if r["role"] == "decode") == 2

        await calls.until(full, "both places are taken")
        await asyncio.sleep(1.0)
        hurry = await ask(http, classes.router_url, hurried, LS, 24)
        assert hurry[0] == reference.greedy(hurried, 24, hurry[0])
        done = [await effort for effort in efforts]
    assert [ids for ids, _, _ in done] == reference.greedy_each(
        prompts, 400, [ids for ids, _, _ in done]
    )
    assert await gave_way(classes, "answer", "decode-0") >= 1


async def test_ranks_that_share_their_experts_take_each_step_together(
    tmp_path: Path, reference: Reference
) -> None:
    """DP attention: a rank that has nothing verifies and drafts along with the other one."""
    prompts = chats(15)
    bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in prompts]
    with deployed(with_draft("cpu-dp", tmp_path), tmp_path) as up:
        answers = await calls.all_of(up.router_url, bodies, 5)
        rows = (await state(up.router_url))["workers"]
    assert [answer.error for answer in answers] == [""] * len(answers)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(prompts, TOKENS, said)
    assert all(row["completed"] for row in rows if row["role"] == "decode"), "both ranks had some"
