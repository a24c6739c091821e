"""LoRA with prefill and decode apart: tokens are those of the model with the adapter merged in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import adapter, calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(600)]

TOKENS = 16


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    folder = tmp_path_factory.mktemp("lora") / "adapter"
    return folder, adapter.merged(folder, adapter.write(folder, 1))


@pytest.fixture(scope="module")
def lora(
    tuned: tuple[Path, Reference], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    args = {"enable-lora": True, "lora-paths": [f"a={tuned[0]}"], "lora-backend": "torch_native"}
    role = {"kv_tokens": 8192, "max_running": 8, "args": args}
    document = {
        "name": "lora", "device": "cpu", "model": "embedded", "prefill": role, "decode": role,
        "router": {"kind": "toolkit"},
    }  # fmt: skip
    with deployed(document, tmp_path_factory.mktemp("deployment")) as up:
        yield up


def test_an_adapter_s_tokens_are_those_of_the_model_with_it(
    lora: Running, tuned: tuple[Path, Reference], reference: Reference
) -> None:
    prompts = [calls.prompt(f"lora-{n}", 20 + 60 * n) for n in range(4)]
    bodies: list[dict[str, Any]] = []
    for ids in prompts:  # the same prompt with and without: their KV must not be mixed up
        bodies += [calls.greedy(ids, TOKENS, True) | {"lora_path": "a"}]
        bodies += [calls.greedy(ids, TOKENS, True)]
    answers = calls.run(calls.all_of(lora.router_url, bodies, 4))
    assert [answer.error for answer in answers] == [""] * len(bodies)
    wanted = [model.greedy(ids, TOKENS) for ids in prompts for model in (tuned[1], reference)]
    assert [answer.ids for answer in answers] == wanted
    assert wanted[0] != wanted[1]


async def test_an_adapter_is_named_in_the_model(lora: Running) -> None:
    talk = [{"role": "user", "content": "hi there"}]

    async def ask(path: str, model: str) -> tuple[int, Any]:
        body = {"model": model, "messages": talk, "max_tokens": 8, "temperature": 0}
        async with calls.session() as http, http.post(lora.router_url + path, json=body) as answer:
            return answer.status, await answer.json()

    chat, messages = "/v1/chat/completions", "/v1/messages"
    plain, tuned = await ask(chat, "embedded"), await ask(chat, "embedded:a")
    text = tuned[1]["choices"][0]["message"]["content"]
    assert text != plain[1]["choices"][0]["message"]["content"]
    assert (await ask(messages, "embedded:a"))[1]["content"][0]["text"] == text
    status, body = await ask(chat, "embedded:nobody")
    assert (status, "nobody" in body["message"]) == (400, True)
