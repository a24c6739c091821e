"""KV that does not get across: no request and no part of one is lost, and the decode worker is used
again."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from tests.e2e.workers import state, victim
from toolkit.launch.running import Running
from toolkit.resources import recipes_dir
from toolkit.settings.load import load_deployment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("kv-failure")]

TOKENS = 6
PARTS = 24
STOPPED_S = 1.8
MOST_STOPS = 60
IMPATIENT = {
    "MC_TCP_STATUS_TIMEOUT_SEC": "1",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "1",
    "MC_TCP_ADMISSION_TIMEOUT_MS": "500",
}
"""Mooncake gives a peer up after a second or less."""
NEVER = 0.0
"""No scheduler counts as stuck. On a busy machine the one that runs for moments only makes no step
in three of them, and would be ended and started again before a transfer failed."""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """launch/cpu-demo.yaml, with a prefill worker that gives up early."""
    deployment = load_deployment(recipes_dir() / "cpu-demo.yaml")
    restart = deployment.restart.model_copy(update={"stuck_s": NEVER})
    deployment = deployment.model_copy(update={"env": IMPATIENT, "restart": restart})
    with deployed(deployment, tmp_path_factory.mktemp("impatient")) as up:
        yield up


def prompts(name: str, count: int) -> list[list[int]]:
    """Long enough that a transfer takes a while."""
    return [calls.prompt(f"kv-{name}-{n}", 700) for n in range(count)]


def bodies(asked: list[list[int]]) -> list[dict[str, Any]]:
    return [calls.greedy(ids, TOKENS, stream=True) for ids in asked]


async def batch(url: str, asked: list[list[int]]) -> list[tuple[str, list[int]]]:
    """The id and the tokens of each part of one request. Of the ids some begin as others do: SGLang
    aborts by prefixes."""
    names = [f"job-{n}" for n in range(len(asked))]
    body = calls.greedy([], TOKENS, stream=False) | {"input_ids": asked, "rid": names}
    async with calls.session() as http, http.post(url + "/generate", json=body) as response:
        assert response.status == 200, await response.text()
        parts = await response.json()
    return [(part["meta_info"]["id"], part["output_ids"]) for part in parts]


def served(rows: dict[str, Any], name: str) -> int:
    return int(next(row["completed"] for row in rows["workers"] if row["name"] == name))


def test_a_decode_worker_to_which_a_transfer_failed_is_used_again(
    impatient: Running, reference: Reference
) -> None:
    url, log = impatient.router_url, impatient.worker("prefill-0").log
    pid = victim(impatient, "decode-1", "scheduler")
    asked = prompts("first", 16)
    parts = asked + prompts("parts", PARTS - len(asked))
    batches: list[list[tuple[str, list[int]]]] = []

    def said(what: str) -> bool:
        return what in log.read_text(errors="replace")

    async def send(until: asyncio.Event) -> list[calls.Answer]:
        """The same requests again and again, and a batch beside them; at least once after
        `until`."""
        answers: list[calls.Answer] = []
        last = False
        while not last:
            last = until.is_set()
            beside = asyncio.create_task(batch(url, parts))
            answers += await calls.all_of(url, bodies(asked), 8)
            batches.append(await beside)
        return answers

    async def scenario() -> list[calls.Answer]:
        """Let the decode worker run for moments only, until one of them ended within a transfer."""
        failed = asyncio.Event()
        sending = asyncio.create_task(send(failed))
        source = random.Random(0)
        for _ in range(MOST_STOPS):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            if said("failed."):
                break
            await asyncio.sleep(source.uniform(0.01, 0.1))
        failed.set()
        return await sending

    answers = calls.run(scenario())
    assert said("failed."), "no transfer failed: this run proved nothing"
    assert [answer.error for answer in answers if answer.error] == []
    all_expected = reference.greedy_each(parts, TOKENS, [ids for _, ids in batches[0]])
    expected = all_expected[: len(asked)]
    wrong = [n for n, answer in enumerate(answers) if answer.ids != expected[n % len(asked)]]
    assert wrong == []
    whole = [(f"job-{n}", ids) for n, ids in enumerate(all_expected)]
    assert [each for each in batches if each != whole] == []
    after = calls.run(state(url))
    assert after["retried"] + after["resumed"] > 0

    async def recovered() -> bool:
        """The prefill worker sends there again, and the pair is not left out any more."""
        pairs = (await state(url))["pairs"]
        return said("recovered via probe") and all(pair["left_out_s"] == 0 for pair in pairs)

    calls.run(calls.until(recovered, "the prefill worker sends to decode-1 again"))
    again = calls.run(calls.all_of(url, bodies(prompts("again", 8)), 4))
    assert [answer.error for answer in again] == [""] * 8
    last = calls.run(state(url))
    assert served(last, "decode-1") > served(after, "decode-1")
    assert (last["retried"], last["resumed"]) == (after["retried"], after["resumed"])
