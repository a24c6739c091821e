"""The keys of a run: who gets which, where they are not, and ports that must not stay open."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.ports import free_port
from tests.unit.launch.stand_ins import deployment, plan, tiny_model, two_workers, worker
from tests.worker_sessions import client_middleware
from toolkit.contract.variables import INSECURE_VARIABLE, WORKER_KEY_VARIABLE
from toolkit.keys import KeysError
from toolkit.launch import keys, readiness
from toolkit.launch.checks import open_ports, possible
from toolkit.launch.errors import LaunchError
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.launch.running import Running, running
from toolkit.launch.state import read_state
from toolkit.resources import recipes_dir
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load_deployment
from toolkit.settings.router.config import RouterConfig

HOSTS = {"a": {"address": "10.1.0.1"}, "b": {"address": "10.1.0.2"}}
# Serves nobody without its key, and tells what it has in its environment.
GUARDED = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        good = self.headers.get("Authorization") == "Bearer " + os.environ["TOOLKIT_WORKER_KEY"]
        data = json.dumps({"env": dict(os.environ), "meta_info": {"completion_tokens": 1}}).encode()
        self.send_response(200 if good else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_POST = do_GET
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def guarded() -> Plan:
    return plan([worker("worker-0", free_port(), GUARDED)])


@contextmanager
def up(wanted: Plan, folder: Path) -> Iterator[Running]:
    folder.mkdir()
    with running(wanted, folder) as started:
        yield started


def test_a_run_makes_its_key_and_writes_it_nowhere(tmp_path: Path) -> None:
    with up(guarded(), tmp_path / "run") as started:  # so the probes had it
        [one] = started.workers
        key = started.worker_key
        assert len(key) > 40
        assert readiness.get(one.url)[0] == 200
        assert one.headers == {"Authorization": f"Bearer {key}"}
        told = json.loads(readiness.get(one.url)[1])["env"]
        assert told[WORKER_KEY_VARIABLE] == key
        written = [p for p in (tmp_path / "run").rglob("*") if p.is_file()]
        assert len(written) >= 3
        assert not any(key.encode() in p.read_bytes() for p in written)
        assert key.encode() not in Path(f"/proc/{one.pid}/cmdline").read_bytes()
    assert keys.ours(one.url) == {}
    with up(guarded(), tmp_path / "other") as started:
        assert started.worker_key != key


def test_no_worker_inherits_a_key_of_clients_or_the_admin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MY_CLIENTS", "MY_ADMIN", "MY_WORKERS", "UNRELATED"):
        monkeypatch.setenv(name, f"value-of-{name}")
    base = deployment(
        tiny_model(tmp_path / "model"),
        router={"api_key_env": "MY_CLIENTS", "admin_key_env": "MY_ADMIN"},
        worker_key_env="MY_WORKERS",
    )
    resolved = resolve(base)
    assert {"MY_CLIENTS", "MY_ADMIN", "MY_WORKERS"} < set(keys.not_for_workers(resolved))
    assert resolved.router is not None
    elsewhere = replace(resolved.router, local=False)
    wanted = replace(guarded(), routers=(elsewhere,), worker_key_env="MY_WORKERS")
    with up(wanted, tmp_path / "run") as started:
        told = json.loads(readiness.get(started.workers[0].url)[1])["env"]
    assert told[WORKER_KEY_VARIABLE] == "value-of-MY_WORKERS"
    assert told["UNRELATED"] == "value-of-UNRELATED"
    assert not {"MY_CLIENTS", "MY_ADMIN", "MY_WORKERS"} & set(told)


def test_the_router_has_the_key_of_its_workers(tmp_path: Path) -> None:
    resolved = resolve(deployment(tiny_model(tmp_path / "model")))
    assert resolved.router is not None and resolved.router.config is not None
    assert resolved.router.config["worker_api_key_env"] == WORKER_KEY_VARIABLE
    armed = keys.armed(resolved, "k")
    assert armed.router is not None
    assert {p.env[WORKER_KEY_VARIABLE] for p in (*armed.workers, armed.router)} == {"k"}  # type: ignore[attr-defined]
    assert WORKER_KEY_VARIABLE not in {**resolved.workers[0].env, **resolved.router.env}


def test_another_process_of_the_same_user_finds_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLKIT_RUNS", str(tmp_path))
    with up(guarded(), tmp_path / "run") as started:
        [one] = started.workers
        monkeypatch.setattr(keys, "_ours", {})  # as in a process that did not start it
        assert keys.key_at(one.url) == started.worker_key
        assert keys.key_at("http://127.0.0.1:1") is None

        async def ask() -> int:
            headers = {"Authorization": "Bearer the-key-for-the-router"}
            middlewares = (client_middleware(),)
            async with (
                aiohttp.ClientSession(headers=headers, middlewares=middlewares) as session,
                session.get(one.url + "/health") as answer,
            ):
                return answer.status

        assert asyncio.run(ask()) == 200


def test_orders_go_to_a_loopback_port_or_need_the_admins_key(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    plain = resolve(deployment(model)).router
    assert plain is not None and plain.config is not None
    port = plain.config["admin_port"]
    assert plain.admin_url == f"http://127.0.0.1:{port}" and port != plain.port
    fixed = resolve(deployment(model, router={"admin_port": 4321})).router
    assert fixed is not None and fixed.admin_url == "http://127.0.0.1:4321"
    keyed = resolve(deployment(model, router={"admin_key_env": "A"})).router
    assert keyed is not None and keyed.config is not None
    assert "admin_port" not in keyed.config and keyed.admin_url == keyed.url
    assert keys.named_keys(keyed)["admin_key_env"] == "A"
    other = resolve(deployment(model, router="sglang")).router
    assert other is not None and other.admin_url is None
    taken = resolve(deployment(model, router={"port": 4321, "admin_port": 4321}))
    assert any("4321 is used twice" in str(p) for p in possible.ports(taken))


def test_keys_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_A", "NO_B", "NO_C"):
        monkeypatch.delenv(name, raising=False)
    base = deployment(
        tiny_model(tmp_path / "model"),
        router={"api_key_env": "NO_A", "admin_key_env": "NO_B"},
        worker_key_env="NO_C",
    )
    problems = possible.secrets(resolve(base))
    assert [p.where for p in problems] == [
        "router.api_key_env",
        "router.admin_key_env",
        "worker_key_env",
    ]
    assert all(p.fatal for p in problems)
    assert not any(p.fatal for p in possible.secrets(resolve(base), dry_run=True))
    with pytest.raises(LaunchError, match="NO_C is empty"):
        keys.worker_key(resolve(base))


def test_a_key_out_of_a_file_beside_the_deployment(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    (tmp_path / "one.yaml").write_text(
        f"name: one\nmodel: {model}\nworker_key_file: worker.key\n"
        "router: {api_keys_file: clients.keys, admin_key_file: admin.key}\n"
    )
    for name, text in (("worker", "w"), ("clients", "x: c1\nc2"), ("admin", "a")):
        path = tmp_path / f"{name}.key{'s' if name == 'clients' else ''}"
        path.write_text(text + "\n")
        path.chmod(0o600)
    found = resolve(load_deployment(tmp_path / "one.yaml"))
    assert possible.secrets(found) == []
    assert keys.worker_key(found) == "w"
    assert found.router is not None and found.router.config is not None
    assert keys.client_key(found.router.config) == "c1"
    assert keys.admin_key(found.router.config) == "a"
    (tmp_path / "admin.key").chmod(0o644)
    [problem] = possible.secrets(found)
    assert "chmod 600" in str(problem)


def test_several_hosts_need_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path / "model")
    fields = {
        "hosts": HOSTS,
        "prefill": {"hosts": ["a"]},
        "decode": {"hosts": ["b"]},
        "insecure": True,
    }
    [problem, _] = possible.secrets(resolve(deployment(model, **fields)))
    assert problem.fatal and "worker_key_file" in str(problem)
    [note, _] = possible.secrets(resolve(deployment(model, **fields)), dry_run=True)
    assert not note.fatal
    monkeypatch.setenv("SHARED", "s")
    [said] = possible.secrets(resolve(deployment(model, **fields, worker_key_env="SHARED")))
    assert not said.fatal and said.where == "insecure"


def test_keys_go_to_other_hosts_only_where_the_deployment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARED", "s")
    model = tiny_model(tmp_path / "model")
    fields = {"hosts": HOSTS, "prefill": {"hosts": ["a"]}, "decode": {"hosts": ["b"]}}
    fields["worker_key_env"] = "SHARED"
    for dry_run in (True, False):
        [problem] = possible.secrets(resolve(deployment(model, **fields)), dry_run)
        assert problem.fatal and "insecure: true" in str(problem)
        assert "10.1.0.1, 10.1.0.2" in str(problem)
    wanted = resolve(deployment(model, **fields, insecure=True))
    [said] = possible.secrets(wanted)
    assert not said.fatal and "plain HTTP between 10.1.0.1, 10.1.0.2" in str(said)
    assert wanted.router is not None and wanted.router.config is not None
    RouterConfig.model_validate(wanted.router.config)
    # Two addresses of this machine, and one host: nothing leaves it.
    fields["hosts"] = {"a": {"address": "127.0.0.1"}, "b": {"address": "127.0.0.2"}}
    assert possible.secrets(resolve(deployment(model, **fields))) == []
    one = {"hosts": {"a": {"address": "10.1.0.1"}}}
    assert possible.secrets(resolve(deployment(model, **one))) == []


@pytest.mark.parametrize(
    ("host", "worker", "refused"),
    [
        ("127.0.0.1", {"url": "http://10.0.0.2:31000"}, True),
        ("127.0.0.1", {"url": "http://gpu-7:31000"}, True),
        ("127.0.0.1", {"url": "http://10.0.0.2:31000", "same_run": True}, False),
        ("10.0.0.2", {"url": "http://10.0.0.2:31000"}, False),
        ("127.0.0.1", {"url": "http://127.0.0.3:31000"}, False),
        ("127.0.0.1", {"url": "http://[::1]:31000"}, False),
    ],
)
def test_a_router_sends_no_key_to_another_host_unasked(
    host: str, worker: dict[str, Any], refused: bool
) -> None:
    config = {
        "host": host, "open": True, "worker_api_key_env": "K",
        "workers": [{"name": "w", "role": "plain", **worker}],
    }  # fmt: skip
    if refused:
        with pytest.raises(ValueError, match=r"the key in worker_api_key_env \(K\).*insecure"):
            RouterConfig.model_validate(config)
        RouterConfig.model_validate(config | {"insecure": True})
        RouterConfig.model_validate(config | {"worker_api_key_env": None})
    else:
        RouterConfig.model_validate(config)


def test_a_command_sends_no_key_to_another_host_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKER_KEY_VARIABLE, "k")
    key = {"Authorization": "Bearer k"}
    assert keys.headers_at("http://127.0.0.1:9") == key
    own = [
        each.address
        for found in psutil.net_if_addrs().values()
        for each in found
        if each.family == socket.AF_INET
    ]
    for address in own:
        assert keys.headers_at(f"http://{address}:9") == key
    with pytest.raises(KeysError, match=r"10\.1\.0\.9.*TOOLKIT_INSECURE"):
        keys.headers_at("http://10.1.0.9:9")
    monkeypatch.setenv(INSECURE_VARIABLE, "1")
    assert keys.headers_at("http://10.1.0.9:9") == key


def test_every_recipe_of_several_hosts_says_what_leaves_them() -> None:
    said = {r.name: load_deployment(r).insecure for r in sorted(recipes_dir().glob("*.yaml"))}
    several = ["deepseek-v3-multinode.yaml", "qwen3-235b-2x8.yaml"]
    assert [name for name, insecure in said.items() if insecure] == several


@pytest.mark.parametrize("kind", ["toolkit", "sglang"])
def test_a_public_port_for_everybody_has_to_be_wanted(tmp_path: Path, kind: str) -> None:
    model = str(tiny_model(tmp_path / "model"))
    router: dict[str, Any] = {"kind": kind, "host": "0.0.0.0"}
    with pytest.raises(ValueError, match="open: true"):
        Deployment.model_validate({"name": "t", "model": model, "router": router})
    Deployment.model_validate({"name": "t", "model": model, "router": router | {"open": True}})
    named = router | {"api_key_env": "K"}
    if kind == "toolkit":
        resolved = resolve(
            Deployment.model_validate({"name": "t", "model": model, "router": named})
        )
        assert resolved.router is not None and resolved.router.config is not None
        assert resolved.router.config["open"] is False
    else:  # the key is set inside its process
        made = Deployment.model_validate({"name": "t", "model": model, "router": named})
        resolved = resolve(made)
        assert resolved.router is not None and resolved.router.key_env == "K"
        assert "--toolkit-api-key-env" in resolved.router.command


def test_every_recipe_says_who_may_come_in() -> None:
    for recipe in sorted(recipes_dir().glob("*.yaml")):
        assert not load_deployment(recipe).router.open, recipe.name


def test_state_tells_where_keys_are_and_holds_none(tmp_path: Path) -> None:
    with up(two_workers(), tmp_path / "run") as started:
        state = read_state(started.run_dir)
        text = (started.run_dir / "state.json").read_text()
        assert started.worker_key not in text
    assert state["admin_url"] is None


def test_a_dry_run_tells_every_open_port_and_how_to_close_it(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    alone = open_ports.told(resolve(deployment(model)))
    for part in ("clients", "orders; wants", "HTTP; wants the run's key", "KV bootstrap", "15000-"):
        assert part in alone
    assert "nft" not in alone
    fields = {"hosts": HOSTS, "prefill": {"hosts": ["a"]}, "decode": {"hosts": ["b"]}}
    rules = open_ports.firewall(resolve(deployment(model, **fields)))
    assert "ip saddr { 10.1.0.1, 10.1.0.2 } accept" in rules[-2]
    for each in resolve(deployment(model, **fields)).workers:
        assert str(each.port) in rules[-1]
    assert "15000-17000" in rules[-1]


def test_sglangs_router_has_no_key_so_its_workers_ask_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARED", "s")
    model = tiny_model(tmp_path / "model")
    alone = resolve(deployment(model, router="sglang"))
    assert keys.worker_key(alone) == ""
    assert keys.armed(alone, "") is alone
    assert WORKER_KEY_VARIABLE in keys.not_for_workers(alone)
    assert possible.secrets(alone) == []
    assert "HTTP; wants" not in open_ports.told(alone)
    [problem] = possible.secrets(
        resolve(deployment(model, router="sglang", worker_key_env="SHARED"))
    )
    assert problem.fatal and "cannot send a key" in str(problem)
    fields = {"hosts": HOSTS, "prefill": {"hosts": ["a"]}, "decode": {"hosts": ["b"]}}
    [problem] = possible.secrets(resolve(deployment(model, **fields, router="sglang")))
    assert problem.fatal and "open: true" in str(problem)
    said = {"kind": "sglang", "open": True}
    assert possible.secrets(resolve(deployment(model, **fields, router=said))) == []


def test_without_a_router_somebody_must_know_the_key(tmp_path: Path) -> None:
    [note] = possible.secrets(resolve(deployment(tiny_model(tmp_path / "model"), router="none")))
    assert not note.fatal and "worker_key_env" in str(note)
