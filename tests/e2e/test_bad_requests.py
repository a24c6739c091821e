"""Bad input: the router answers with the status and the message that a plain server gives.

Where a plain server fails with a 500, or dies, the router says what is wrong with the value.
"""

import json
import re
from importlib.metadata import version
from typing import Any

import pytest

from tests.e2e import calls
from toolkit.launch.running import Running

pytestmark = pytest.mark.e2e

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "embedded", "messages": [{"role": "user", "content": "hi"}], **more}


def text(**more: Any) -> dict[str, Any]:
    return {"model": "embedded", "prompt": "hi", **more}


def native(**sampling: Any) -> dict[str, Any]:
    return {"text": "hi", "sampling_params": sampling}


TEMPLATE = chat(chat_template_kwargs={"chat_template": "x"})
CASES: list[tuple[str, Any]] = [
    (CHAT, chat(messages="hi")),
    (CHAT, chat(messages=[])),
    (CHAT, chat(messages=[{"role": "user"}])),
    (CHAT, chat(max_tokens="many")),
    (CHAT, chat(max_tokens=-1)),
    (CHAT, chat(temperature=-3)),
    (CHAT, chat(top_p=5)),
    (CHAT, chat(top_p=0)),
    (CHAT, chat(stop=[1, {}])),
    (CHAT, chat(frequency_penalty=99)),
    (CHAT, chat(messages=[{"role": "user", "content": "word " * 9000}])),
    (TEXT, text(prompt={"a": 1})),
    (TEXT, text(prompt="")),
    (TEXT, text(temperature="hot")),
    (TEXT, text(max_tokens=10**9)),
    (NATIVE, {}),
    (NATIVE, {"text": "hi", "input_ids": [1]}),
    (NATIVE, native(temperature=-1)),
    (NATIVE, native(max_new_tokens=-5)),
    (NATIVE, native(top_k=-7)),
    (NATIVE, native(min_new_tokens=9, max_new_tokens=3)),
    (NATIVE, native(top_k=0)),
    (NATIVE, native(logit_bias={"99999999": 1})),
    (NATIVE, native(stop_regex="a" * 300)),
    (NATIVE, native(stop=["a"] * 40)),
    (NATIVE, native(beam_width=0)),
    (CHAT, chat(response_format={"type": "json_schema"})),
    (CHAT, chat(tool_choice="required")),
    (CHAT, TEMPLATE),
    (CHAT, chat(messages=[{"role": "nobody", "content": "a"}])),
    (CHAT, chat(logit_bias=5, n="x")),
    (TEXT, text(max_tokens=0)),
    (TEXT, text(stop_token_ids=["x"])),
    (NATIVE, {"input_ids": [1] * 9000}),
    (NATIVE, {"input_ids": "abc"}),
]


def answer(url: str, path: str, body: Any) -> tuple[int, str]:
    """(status, message without what differs from request to request)."""

    async def main() -> tuple[int, bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        async with calls.session() as http, http.post(url + path, data=data, headers=headers) as r:
            return r.status, await r.read()

    status, raw = calls.run(main())
    return status, _message(raw) if status != 200 else ""


def _message(raw: bytes) -> str:
    try:
        found = json.loads(raw)
    except ValueError:
        return raw.decode()
    for key in ("error", "message", "detail"):
        while isinstance(found, dict) and key in found:
            found = found[key]
    if isinstance(found, str):
        # A plain server puts the errors in other words, and paths of its own source, before the
        # list of them; the router gives the list.
        told = re.search(r"^\d+ validation errors?:\n.*? (\[\{'type': .*\])$", found, re.DOTALL)
        # Which member of a union is tried first hangs on what was imported first (typing's cache).
        errors = re.split(r"(?<=\}), (?=\{'type': )", (told[1] if told else found).strip("[]"))
        # The router knows a role that SGLang has from 0.5.23 on.
        found = ", ".join(sorted(errors)).replace(", 'root'", "")
    return re.sub(r"[0-9a-f]{32}", "ID", json.dumps(found, sort_keys=True))


@pytest.mark.parametrize(("path", "body"), CASES, ids=lambda v: str(v)[:60])
def test_the_answer_is_the_plain_servers(
    deployment: Running, plain_server: str, path: str, body: Any
) -> None:
    if body == TEMPLATE and version("sglang") == "0.5.20":
        pytest.skip("SGLang 0.5.20 runs anybody's template; the router refuses it there, too")
    assert answer(deployment.router_url, path, body) == answer(plain_server, path, body)


@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE])
@pytest.mark.parametrize("raw", [b'{"model": ', b"", b"[]", b'"x"', b"\xff\xfe", b"{}"])
def test_what_is_no_request_is_a_400(deployment: Running, path: str, raw: bytes) -> None:
    # A plain server quotes paths of its own source here, or fails with a 500.
    status, message = answer(deployment.router_url, path, raw)
    assert status == 400
    assert "bootstrap" not in message


@pytest.mark.parametrize("wrong", [10**7, -1, 2**40])
@pytest.mark.parametrize("stream", [True, False])
def test_ids_beyond_the_vocabulary_never_reach_a_worker(
    deployment: Running, wrong: int, stream: bool
) -> None:
    """A plain SGLang server dies of such an id."""
    pids = [worker.pid for worker in deployment.workers]
    for path, body in (
        (NATIVE, {"input_ids": [1, wrong], "stream": stream}),
        (NATIVE, {"input_ids": [[1], [wrong]], "stream": stream}),
        (TEXT, text(prompt=[1, wrong], stream=stream)),
    ):
        status, message = answer(deployment.router_url, path, body)
        assert status == 400
        assert f"out-of-vocabulary token id {wrong}" in message
    assert [worker.pid for worker in deployment.workers] == pids


KILLERS: list[tuple[str, Any, str]] = [
    (NATIVE, native(logit_bias=""), "logit_bias must be"),
    (NATIVE, native(logit_bias=[]), "logit_bias must be"),
    (NATIVE, native(top_k=1e30), "top_k must be"),
    (NATIVE, native(top_k=10**30), "top_k must be"),
    (NATIVE, native(regex=[[]]), "regex must be"),
    (NATIVE, native(stream_interval=0), "stream_interval must be"),
    (NATIVE, native(stop_token_ids=[10**9], min_new_tokens=2), "stop_token_ids must be"),
    (NATIVE, native(no_such_parameter=1), "no_such_parameter"),
    (NATIVE, {"text": "hi", "sampling_params": [{"n": []}]}, "only one prompt"),
    (NATIVE, native(ebnf="root ::= root"), "never ends"),
    (NATIVE, native(json_schema='{"$ref": "#"}'), "only refers to itself"),
    (NATIVE, {"text": "hi", "positional_embed_overrides": []}, ""),
    (NATIVE, {"text": "hi", "positional_embed_overrides": {"0": 1}}, "not taken from clients"),
    (NATIVE, {"text": "hi", "lora_id": [""]}, ""),
    (NATIVE, native(custom_params={"toolkit_resume": ["x"]}), ""),
    (NATIVE, native(custom_params={"Toolkit": {"resume": "x"}}), ""),
    (CHAT, chat(custom_params={"toolkit_resume": [2**70]}, toolkit_resume=[-1], max_tokens=2), ""),
    (CHAT, chat(input_ids=[10**7]), "out-of-vocabulary"),
    (CHAT, chat(response_format=5), "response_format"),
    (CHAT, chat(background=True, max_tokens=2), ""),
    (TEXT, text(logprobs=100000), "logprobs must be"),
    (TEXT, text(prompt=[1.0, 99999999.0]), "out-of-vocabulary"),
    (TEXT, text(bootstrap_room=7, bootstrap_host="10.0.0.1", routed_dp_rank=9), ""),
]
"""And what is said of each; "" where it is dropped and the request served."""


@pytest.mark.parametrize(("path", "body", "words"), KILLERS, ids=lambda v: str(v)[:60])
def test_what_kills_a_plain_server_is_refused(
    deployment: Running, path: str, body: Any, words: str
) -> None:
    pids = [worker.pid for worker in deployment.workers]
    for stream in (False, True):
        status, message = answer(deployment.router_url, path, {**body, "stream": stream})
        assert (status, words in message) == (400 if words else 200, True), message
    assert [worker.pid for worker in deployment.workers] == pids


def test_it_still_serves(deployment: Running) -> None:
    status, _ = answer(deployment.router_url, NATIVE, native(max_new_tokens=2))
    assert status == 200
