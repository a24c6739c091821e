"""Plans made of small real processes instead of SGLang workers."""

import os
import select
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.ports import free_port
from toolkit.launch import trees
from toolkit.launch.command import python_env
from toolkit.launch.model import ModelFacts
from toolkit.launch.plan import RUN_DIR, Plan, RouterPlan, WorkerPlan
from toolkit.settings.deployment import Deployment
from toolkit.settings.processes import Restart, Timeouts

# A "worker": serves /health and /generate, and has a child and a grandchild that only sleep; the
# grandchild has left for a session of its own.
SERVER = textwrap.dedent(
    """
    import http.server, json, subprocess, sys
    inner = "import subprocess, sys, time; " \\
            "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)']," \\
            " start_new_session=True); print(1, flush=True); time.sleep(600)"
    subprocess.Popen([sys.executable, "-S", "-c", inner], stdout=subprocess.PIPE).stdout.readline()
    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, body):
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        def do_GET(self):
            self.answer({})
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer({"meta_info": {"completion_tokens": 4}})
        def log_message(self, *args):
            pass
    print("serving", flush=True)
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
    """
)


def worker(name: str, port: int, code: str = SERVER) -> WorkerPlan:
    return WorkerPlan(
        name=name,
        role="plain",
        replica=0,
        node_rank=0,
        nodes=1,
        host="local",
        address="127.0.0.1",
        url=f"http://127.0.0.1:{port}",
        port=port,
        bootstrap_port=None,
        dist_port=None,
        gpus=(),
        tp=1,
        dp=1,
        ep=1,
        dp_attention=False,
        kv_tokens=None,
        max_running=None,
        after=(),
        argv=(),
        command=(sys.executable, "-S", "-c", code, str(port)),
        env={},
        local=True,
    )


def plan(workers: Sequence[WorkerPlan], restart: Restart | None = None) -> Plan:
    facts = ModelFacts("/none", "/none", "stand-in", {}, weights_here=True, weight_bytes=0)
    return Plan(
        name="stand-in",
        device="cpu",
        mode="plain",
        model=facts,
        dispatch="concurrent",
        transfer=None,
        local_host="local",
        workers=tuple(workers),
        routers=(),
        timeouts=Timeouts(start=60, stop=5),
        restart=restart or Restart(first_delay=0.05, max_delay=0.05),
    )


def routed(worker_port: int, router_port: int) -> Plan:
    """A stand-in worker that speaks to a router, and the toolkit's real router in front of it."""
    one = worker("worker-0", worker_port)
    standin = ["-m", "tests.standin.worker", "--role", "null", "--port", str(worker_port)]
    one = replace(one, command=(sys.executable, *standin), env=python_env())
    entry = {"name": one.name, "role": "plain", "url": one.url, "same_run": True}
    ports = {"port": router_port, "admin_port": free_port()}
    config = {**ports, "dispatch": "concurrent", "workers": [entry]}
    router = RouterPlan(
        kind="toolkit",
        node="local",
        host="127.0.0.1",
        port=router_port,
        url=f"http://127.0.0.1:{router_port}",
        command=(sys.executable, "-m", "toolkit.router", f"{RUN_DIR}/router.json"),
        env=python_env(),
        config=config,
        local=True,
    )
    return replace(plan([one], Restart(max_restarts=0)), routers=(router,))


def two_workers(code: str = SERVER) -> Plan:
    return plan([worker("worker-0", free_port(), code), worker("worker-1", free_port(), code)])


def wait_gone(processes: Sequence[trees.ProcessRow], timeout: float = 30.0) -> None:
    """Wait on pidfds until every one of these processes has ended."""
    for process in processes:
        try:
            fd = os.pidfd_open(process.pid)
        except OSError:
            continue
        try:
            if trees.is_running(process.pid, process.start):
                assert select.select([fd], [], [], timeout)[0], f"{process} still lives"
        finally:
            os.close(fd)


def tiny_model(folder: Path) -> Path:
    """A model folder with a config and an (empty) weight file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        '{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,'
        ' "hidden_size": 64, "dtype": "bfloat16"}'
    )
    (folder / "model.safetensors").write_bytes(b"0" * 1000)
    return folder


def deployment(model: Path, **fields: object) -> Deployment:
    return Deployment.model_validate({"name": "t", "model": str(model)} | fields)
