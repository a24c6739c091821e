"""No prompt, key or token in anything that a run writes: real workers, at log level debug."""

import json
import re
import stat
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.deployments import deployed
from toolkit.launch.running import Running
from toolkit.settings.deployment import Deployment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PROMPT = "zebra-Quagga-7731 whispers"
KEY = "client-key-Okapi-4242"
VALUE = "env-secret-Numbat-9317"
SERVED = "served"
TOKENS = [611, 613, 617, 619, 631, 641, 643, 647]
DEBUG = {"args": {"log-level": "debug"}, "kv_tokens": 8192, "max_running": 8}
TOOL = {"type": "function", "function": {"name": PROMPT.split()[0], "parameters": {}}}


def deployment() -> Deployment:
    return Deployment.model_validate(
        {
            "name": "private",
            "model": {"path": "embedded", "served_name": SERVED},
            "prefill": DEBUG | {"env": {"SOME_API_TOKEN": VALUE}},
            "decode": DEBUG,
            "router": {"api_key_env": "PRIVATE_LOGS_KEY"},
            "timeouts": {"start": 400},
        }
    )


def post(up: Running, path: str, body: Any, key: str = KEY) -> int:
    """The status of a request; whatever it is, nothing of it may be logged."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(up.router_url + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def chat(**fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": PROMPT}
    return {"model": SERVED, "max_tokens": 8, "messages": [message]} | fields


def talk(up: Running) -> None:
    """Requests that are served, refused, do not compile, do not parse, and are broken off."""
    few = {"max_new_tokens": 8}
    assert post(up, "/generate", {"text": PROMPT, "sampling_params": few}) == 200
    assert post(up, "/generate", {"input_ids": TOKENS, "sampling_params": few}) == 200
    assert post(up, "/v1/completions", {"model": SERVED, "prompt": PROMPT, "max_tokens": 8}) == 200
    assert post(up, "/v1/chat/completions", chat()) == 200
    assert post(up, "/v1/chat/completions", chat(), key="wrong-" + KEY) == 401
    post(up, "/v1/chat/completions", chat(tools=[TOOL], tool_choice="required"))
    post(up, "/v1/chat/completions", chat(tools=[TOOL], tool_choice=PROMPT))
    post(up, "/v1/chat/completions", chat(temperature=PROMPT))
    post(up, "/v1/chat/completions", chat(messages=[{"role": PROMPT, "content": PROMPT}]))
    schema = {"name": "x", "schema": {"type": PROMPT}}
    post(
        up,
        "/v1/chat/completions",
        chat(response_format={"type": "json_schema", "json_schema": schema}),
    )
    for name, grammar in (
        ("regex", f"({PROMPT}"),
        ("ebnf", f"root ::= {PROMPT}"),
        ("json_schema", PROMPT),
    ):
        post(up, "/generate", {"text": PROMPT, "sampling_params": few | {name: grammar}})
    post(up, "/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": PROMPT}})
    post(up, "/generate", {"text": {"x": PROMPT}})
    post(up, "/v1/chat/completions", b'{"messages": "' + PROMPT.encode())
    post(up, f"/generate?prompt={PROMPT.split()[0]}", b"\x00" + PROMPT.encode())


def written(folders: list[Path]) -> dict[Path, str]:
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                found[path] = path.read_bytes().decode("utf-8", "replace")
    return found


def test_nothing_that_a_run_writes_has_prompts_keys_or_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVATE_LOGS_KEY", KEY)
    run = tmp_path / "run"
    with deployed(deployment(), run, own_imports=True) as up:
        environ = psutil.Process(up.worker("prefill-0").pid).environ()
        assert environ["SOME_API_TOKEN"] == VALUE
        assert "PRIVATE_LOGS_KEY" not in environ
        talk(up)
        scheduler = next(
            child
            for child in psutil.Process(up.worker("decode-0").pid).children(recursive=True)
            if "scheduler" in " ".join(child.cmdline())
        )
        scheduler.kill()  # what a server says while it dies is written, too
        up.wait_ready("decode-0", restarts=1)
        assert (
            post(up, "/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": 8}}) == 200
        )
        files = written([run, Path(environ["TMPDIR"])])
    files |= written([run])
    logs = [path for path in files if path.suffix == ".log"]
    assert {path.stem for path in logs} == {"prefill-0", "decode-0", "router", "preloaded"}
    assert all(len(files[path]) > 200 for path in logs)
    for path in run.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    words = [*PROMPT.split(), KEY, VALUE, ", ".join(map(str, TOKENS[:4]))]
    found = [
        f"{path.name}: {line[:400]}"
        for path, text in files.items()
        for line in text.splitlines()
        if any(word in line for word in words) or re.search(r"611\D{1,3}613\D{1,3}617", line)
    ]
    assert not found, "\n".join(found)
