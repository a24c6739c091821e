"""The plan: what exactly will run, where, with which ports, devices, flags and environment.

`resolve` is the only way to make one. It starts nothing and opens no port for good; `checks`
judges it, `show` prints it, `supervisor` runs it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from toolkit.launch import command, hardware, reserved
from toolkit.launch.deployment import Deployment, LogFiles, Restart, Role, Timeouts
from toolkit.launch.dp_policy import check_args
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.locality import Locality, read_locality
from toolkit.launch.masking import masked_plan
from toolkit.launch.model import ModelFacts, read_model
from toolkit.launch.placement import Request, place
from toolkit.policies.base import group_count

RUN_DIR = "{run_dir}"
"""Stands for the run folder in commands; the supervisor puts the real one in."""

DIST_PORTS = 14
"""SGLang takes dist-init-addr's port, six after it (`PortArgs.init_new`) and, for DP attention, the
13th, where other nodes ask for the ranks' ports (`DP_ATTENTION_HANDSHAKE_PORT_DELTA`)."""


@dataclass(frozen=True)
class WorkerPlan:
    """One process: one node of one replica. Ports that its node does not open are None."""

    name: str
    role: str
    replica: int
    node_rank: int
    nodes: int
    host: str
    address: str
    url: str | None
    port: int
    bootstrap_port: int | None
    dist_port: int | None
    gpus: tuple[int, ...]
    tp: int
    dp: int
    ep: int
    dp_attention: bool
    kv_tokens: int | None
    max_running: int | None
    after: tuple[str, ...]
    argv: tuple[str, ...]
    command: tuple[str, ...]
    env: Mapping[str, str]
    local: bool

    @property
    def centroids(self) -> int:
        """How many ELDR has for its ranks."""
        return group_count(self.dp, self.dp_attention)

    @property
    def ports(self) -> tuple[int, ...]:
        """Every TCP port that this process must find free on its host."""
        own = [p for p in (self.port, self.bootstrap_port) if p]
        if self.dist_port and self.node_rank == 0:
            own += range(self.dist_port, self.dist_port + DIST_PORTS)
        return tuple(own)

    @property
    def health_url(self) -> str:
        """Answers 200 once this process serves (SGLang's higher nodes have a stand-in server)."""
        return f"http://{self.address}:{self.port}/health"


@dataclass(frozen=True)
class RouterPlan:
    """The front door: ours (`config` is its router.json), SGLang's, or none."""

    kind: str
    node: str
    host: str
    port: int
    url: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    config: Mapping[str, Any] | None
    local: bool
    key_env: str | None = None
    """The variable that holds the clients' key."""
    open: bool = False
    """Strangers may use it, says the deployment."""

    @property
    def admin_url(self) -> str | None:
        """Where orders go: to a loopback port, or with the admin key to the front door; None for
        SGLang's router, which takes none."""
        if self.config is None:
            return None
        port = self.config.get("admin_port")
        return f"http://127.0.0.1:{port}" if port else self.url


@dataclass(frozen=True)
class Plan:
    """Everything that will run, and the limits under which it is supervised."""

    name: str
    device: str
    mode: str
    model: ModelFacts
    dispatch: str
    transfer: str | None
    local_host: str
    workers: tuple[WorkerPlan, ...]
    router: RouterPlan | None
    timeouts: Timeouts
    restart: Restart
    problems: tuple[Problem, ...] = ()
    locality: Locality | None = None
    worker_key_env: str | None = None
    worker_key_file: str | None = None
    logs: LogFiles = field(default_factory=LogFiles)
    isolate: bool = False
    """It is to be in a network namespace of its own (`toolkit.launch.isolation`)."""

    @property
    def keyed(self) -> bool:
        """Whether the workers ask for the run's key. SGLang's router cannot send one: its health
        checks carry none, and whoever knows its `--api-key` must be a client as well."""
        return self.router is None or self.router.kind != "sglang"

    @property
    def entry_url(self) -> str:
        """Where clients go: the router, or the first worker when there is no router."""
        if self.router:
            return self.router.url
        return next(w.url for w in self.workers if w.url)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, for people (plan.json, `--dry-run --json`): without secrets."""
        data = asdict(replace(self, locality=None))
        data["locality"] = self.locality.to_json() if self.locality else None
        data["timeouts"] = self.timeouts.model_dump()
        data["restart"] = self.restart.model_dump()
        data["logs"] = self.logs.model_dump()
        data["problems"] = [str(p) for p in self.problems]
        return masked_plan(data)


def resolve(deployment: Deployment, host: str | None = None) -> Plan:
    """Turn a deployment into a plan as seen from `host` (a name in `hosts`; default: the one with
    this machine's name or address, else the first).

    Raises LaunchError when there is no such plan (no model, no host, not enough GPUs, no profile).
    """
    problems = [p for name, role in deployment.roles.items() for p in _role_problems(name, role)]
    problems += reserved.problems("router.args", deployment.router.args, reserved.ROUTER)
    if problems:
        raise LaunchError(problems)
    model = read_model(deployment)
    locality = read_locality(deployment)
    addresses = {n: h.address for n, h in deployment.hosts.items()} or {"local": "127.0.0.1"}
    local = _local_host(addresses, host)
    requests = list(_requests(deployment))
    gpus = {
        name: (deployment.hosts[name].gpus if name in deployment.hosts else None)
        or (len(hardware.visible_gpus()) if name == local else 0)
        or 8
        for name in addresses
    }
    places = place(requests, gpus, needs_gpus=deployment.device == "cuda")
    from toolkit.launch.builder import Builder

    builder = Builder(deployment, model, addresses, local, locality)
    workers = builder.workers(places)
    return Plan(
        name=deployment.name,
        device=deployment.device,
        mode=deployment.mode,
        model=model,
        dispatch=builder.dispatch,
        transfer=command.transfer_backend(deployment) if deployment.mode == "pd" else None,
        local_host=local,
        workers=workers,
        router=builder.router(workers),
        timeouts=deployment.timeouts,
        restart=deployment.restart,
        locality=locality,
        worker_key_env=deployment.worker_key_env,
        worker_key_file=deployment.worker_key_file
        and str(deployment.path_of(deployment.worker_key_file)),
        logs=deployment.logs,
        isolate=deployment.isolate,
    )


def _role_problems(name: str, role: Role) -> list[Problem]:
    found = reserved.problems(f"{name}.args", role.args, reserved.WORKER)
    problems = [*found, *check_args(name, role)]
    wanted = role.replicas * role.nodes
    if role.hosts is not None and len(role.hosts) not in (role.nodes, wanted):
        what = f"lists {len(role.hosts)} hosts for {role.replicas} replicas of {role.nodes} nodes"
        problems.append(Problem(f"{name}.hosts", what, f"list {wanted} (or {role.nodes}, shared)"))
    per_node = role.ranks // role.nodes
    if role.gpus is not None and len(role.gpus) not in (per_node, per_node * role.replicas):
        what = f"lists {len(role.gpus)} GPUs for {role.replicas} replicas of {per_node} a host"
        mend = f"list {per_node * role.replicas} (or {per_node}, shared by the replicas)"
        problems.append(Problem(f"{name}.gpus", what, mend))
    return problems


def _requests(deployment: Deployment) -> list[Request]:
    requests = []
    for name, role in deployment.roles.items():
        per_node = role.ranks // role.nodes
        for i in range(role.replicas):
            hosts, gpus = role.hosts, role.gpus
            if hosts is not None and len(hosts) > role.nodes:
                hosts = hosts[i * role.nodes : (i + 1) * role.nodes]
            if gpus is not None and len(gpus) > per_node:
                gpus = gpus[i * per_node : (i + 1) * per_node]
            requests.append(
                Request(
                    name=f"{name}-{i}",
                    nodes=role.nodes,
                    per_node=per_node,
                    hosts=tuple(hosts) if hosts is not None else None,
                    gpus=tuple(gpus) if gpus is not None else None,
                )
            )
    return requests


def _local_host(addresses: Mapping[str, str], wanted: str | None) -> str:
    if wanted is not None:
        if wanted in addresses:
            return wanted
        raise LaunchError([Problem("--host", f"no host {wanted!r}", f"one of {list(addresses)}")])
    mine = {socket.gethostname(), socket.gethostname().split(".")[0]}
    for name, address in addresses.items():
        if name in mine or address in mine:
            return name
    return next(iter(addresses))
