"""Flags that get around the file's keys, and secrets that must be shown to nobody."""

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.ports import free_port
from tests.present import present
from tests.sglang_python import run_python
from tests.unit.launch.stand_ins import deployment, plan, tiny_model, worker
from toolkit.launch import command
from toolkit.launch.checks import possible, reserved
from toolkit.launch.errors import LaunchError
from toolkit.launch.masking import MASK, masked, masked_argv
from toolkit.launch.resolve import resolve
from toolkit.launch.running import running

SECRET = "s3cr3t-0815-value"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny_model(tmp_path_factory.mktemp("model"))


def refused(model: Any, **fields: Any) -> Any:
    with pytest.raises(LaunchError) as caught:
        resolve(deployment(model, **fields))
    (problem,) = caught.value.problems
    return str(problem)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"host=0.0.0.0": True}, "set hosts at the top"),
        ({"host": "0.0.0.0"}, "is set by the launcher"),
        ({"--host": "0.0.0.0"}, "is set by the launcher"),
        ({"hos": "0.0.0.0"}, "argparse takes it for --host, which is set by the launcher"),
        ({"api-ke": "x"}, "argparse takes it for --api-key"),
        ({"api_key": "x"}, "the router checks keys"),
        ({"admin-api-k=x": True}, "argparse takes it for --admin-api-key"),
        ({"nccl_init_addr": "x"}, "set decode.nodes instead"),
        ({"config": "flags.yaml"}, "where they are checked"),
        ({"log-level info": True}, "is no name of a flag"),
        ({"log-level=info": True}, "write log-level: VALUE"),
        ({"": 1}, "is no name of a flag"),
        ({"log-level": "--host=0.0.0.0"}, "would be read as another flag"),
        ({"lora-paths": ["a", "--host", "0.0.0.0"]}, "would be read as another flag"),
    ],
)
def test_reserved_flags_in_every_spelling(model: Any, args: Any, said: str) -> None:
    assert said in refused(model, decode={"args": args})


@pytest.mark.parametrize("args", [{"host": "0.0.0.0"}, {"por=1": True}, {"api-ke": "x"}])
def test_reserved_flags_of_sglang_s_router(model: Any, args: Any) -> None:
    assert "is set by the launcher" in refused(model, router={"kind": "sglang", "args": args})


@given(st.sampled_from(sorted(reserved.WORKER)), st.data())
def test_whatever_argparse_takes_for_a_reserved_flag_is_refused(
    flag: Any, data: st.DataObject
) -> None:
    short = flag[: data.draw(st.integers(1, len(flag)))]
    assume(short not in reserved.WHOLE)  # a flag of its own
    written = short.replace("-", data.draw(st.sampled_from("-_")))
    key = data.draw(st.sampled_from(["", "-", "--"])) + written + data.draw(
        st.sampled_from(["", "=", "=0.0.0.0"])
    )  # fmt: skip
    assert reserved.problems("decode.args", {key: True}, reserved.WORKER)


def test_no_flag_of_sglang_is_taken_for_a_reserved_one() -> None:
    """Each name that begins a reserved one is refused: no flag of SGLang's may be such a name."""
    found = run_python(
        "from patches.worker import prepare_process\n"
        "prepare_process()\n"
        "import argparse, json\n"
        "from sglang.srt.server_args import ServerArgs\n"
        "parser = argparse.ArgumentParser()\n"
        "ServerArgs.add_cli_args(parser)\n"
        "print(json.dumps([o for a in parser._actions for o in a.option_strings]))"
    )
    flags = [flag for flag in json.loads(found.stdout.splitlines()[-1]) if flag.startswith("--")]
    assert len(flags) > 300
    taken = [f[2:] for f in flags if reserved.problems("x.args", {f: 1}, reserved.WORKER)]
    assert set(taken) <= set(reserved.WORKER), taken
    assert set(reserved.WORKER) - set(taken) == {"tp", "dp"}  # these are short themselves


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HF_TOKEN", SECRET, MASK),
        ("AWS_SECRET_ACCESS_KEY", SECRET, MASK),
        ("DB_PASSWORD", SECRET, MASK),
        ("MYAPIKEY", SECRET, MASK),
        ("API_KEYS", SECRET, MASK),
        ("DB_PWD", SECRET, MASK),
        ("PROXY", f"http://me:{SECRET}@proxy:3128/x", f"http://{MASK}@proxy:3128/x"),
        ("TOKENIZERS_PARALLELISM", "false", "false"),
        ("MAX_TOKENS", "4096", "4096"),
        ("KEYBOARD", "de", "de"),
        ("PWD", "/root", "/root"),
    ],
)
def test_what_looks_like_a_secret_is_masked(name: str, value: Any, shown: Any) -> None:
    assert masked(name, value) == shown


def test_values_of_flags_are_masked() -> None:
    argv = [
        "p",
        "--max-total-tokens",
        "16384",
        "--ssl-keyfile-password",
        SECRET,
        f"--a-key={SECRET}",
    ]
    shown = ["p", "--max-total-tokens", "16384", "--ssl-keyfile-password", MASK, f"--a-key={MASK}"]
    assert masked_argv(argv) == shown


FILE = """
name: masked
model: {model}
env: {{HF_TOKEN: {secret}1, PLAIN: shown}}
decode: {{env: {{MY_API_KEY: {secret}2}}}}
prefill: {{env: {{PROXY: "http://u:{secret}3@host/"}}}}
"""


def test_a_dry_run_shows_no_secret(model: Any, tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text(FILE.format(model=model, secret=SECRET))
    for more in ([], ["--json"]):
        command_line = [
            sys.executable,
            "-m",
            "toolkit",
            "launch",
            str(file),
            "--dry-run",
            "--no-check",
        ]
        done = subprocess.run(
            [*command_line, *more], cwd=command.source_root(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert SECRET not in done.stdout + done.stderr
        assert "shown" in done.stdout and MASK in done.stdout
    made = resolve(deployment(model, decode={"env": {"MY_API_KEY": SECRET}}))
    assert {w.env.get("MY_API_KEY") for w in made.workers} == {None, SECRET}  # the real one goes in


def test_the_process_gets_the_secret_and_nobody_reads_it(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the clients' key, which the router needs, is not in a worker's environment."""
    from dataclasses import replace

    from toolkit.launch.plan import RouterPlan

    monkeypatch.setenv("PUBLIC_PORT_KEY", SECRET + "-front")
    one = worker("worker-0", free_port())
    one = replace(one, env={"HF_TOKEN": SECRET})
    port = free_port()
    router = RouterPlan(
        kind="sglang",
        node="local",
        host="127.0.0.1",
        port=port,
        url=f"http://127.0.0.1:{port}",
        command=(*one.command[:4], str(port)),
        env={},
        config=None,
        local=True,
        key_env="PUBLIC_PORT_KEY",
    )
    with running(replace(plan([one]), routers=(router,)), tmp_path / "run") as up:
        environ = psutil.Process(up.workers[0].pid).environ()
        assert environ["HF_TOKEN"] == SECRET and "PUBLIC_PORT_KEY" not in environ
        assert psutil.Process(up.router_pid).environ()["PUBLIC_PORT_KEY"] == SECRET + "-front"
        written = "".join(p.read_text() for p in (tmp_path / "run").iterdir())
    assert SECRET not in written and MASK in written


class _Worker(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b'{"text": "x", "meta_info": {"completion_tokens": 1}, "model_path": "m"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer

    def log_message(self, *args: Any) -> None:
        pass


def test_sglang_s_router_asks_for_the_key(model: Any, tmp_path: Path) -> None:
    """The public port of `kind: sglang` was open whatever the file said. The key is not in `ps`."""
    made = resolve(
        deployment(
            model,
            mode="plain",
            router={"kind": "sglang", "api_key_env": "FRONT_KEY"},
            worker={"port": free_port()},
        )
    )
    assert "FRONT_KEY" in str(possible.secrets(made)[0])
    server = ThreadingHTTPServer(("127.0.0.1", made.workers[0].port), _Worker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    log = tmp_path / "router.log"
    with log.open("wb") as out:
        router = subprocess.Popen(
            present(made.router).command,
            env={**os.environ, **present(made.router).env, "FRONT_KEY": SECRET},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        url = present(made.router).url
        _wait_for(url, router)
        assert _status(f"{url}/generate", None) == 401
        assert _status(f"{url}/generate", "wrong") == 401
        assert _status(f"{url}/generate", SECRET) == 200
        assert SECRET not in " ".join(psutil.Process(router.pid).cmdline())
    finally:
        router.terminate()
        router.wait(20)
        server.shutdown()
        server.server_close()
    assert SECRET not in log.read_text()


def _wait_for(url: Any, router: Any) -> None:
    import time

    for _ in range(200):
        assert router.poll() is None
        try:
            with urllib.request.urlopen(f"{url}/readiness", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the router did not become ready")


def _status(url: Any, key: Any) -> Any:
    headers = {"Content-Type": "application/json"} | (
        {"Authorization": f"Bearer {key}"} if key else {}
    )
    request = urllib.request.Request(url, b'{"text": "hi"}', headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
