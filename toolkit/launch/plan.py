"""The plan: what exactly will run, where, with which ports, devices, flags and environment.

`toolkit.launch.resolve` is the only way to make one. It starts nothing and opens no port for good;
`checks` judges it, `show` prints it, `supervisor` runs it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from toolkit.contract.addresses import http_url, loopback_like
from toolkit.launch.errors import Problem
from toolkit.launch.masking import masked_plan
from toolkit.launch.model import ModelFacts
from toolkit.launch.profile_needs import ProfileNeeds
from toolkit.loopback import is_loopback
from toolkit.policies.base import group_count
from toolkit.settings.processes import LogFiles, Restart, Timeouts

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
    ranges: tuple[str, ...] = ()
    """The lengths that its ranks serve (`1-512`); empty where it has no stage."""

    @property
    def ranks(self) -> int:
        """Scheduler processes of the whole replica, without pipeline stages."""
        return self.tp if self.dp_attention else self.tp * self.dp

    @property
    def centroids(self) -> int:
        """How many ELDR has for its ranks."""
        return group_count(self.dp, self.dp_attention)

    @property
    def section(self) -> str:
        """The part of a deployment file that describes it."""
        return "worker" if self.role == "plain" else self.role

    @property
    def flags(self) -> dict[str, str]:
        """Each word of its arguments, with the word behind it: `--flag` -> its value."""
        return dict(zip(self.argv, (*self.argv[1:], ""), strict=True))

    @property
    def pipelined(self) -> str:
        """The flag by which it has pipeline stages; empty where it has none."""
        names = ("--pp-size", "--pipeline-parallel-size")
        return next((name for name in names if self.flags.get(name, "1") not in ("0", "1")), "")

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
        return http_url(self.address, self.port) + "/health"


@dataclass(frozen=True)
class RouterPlan:
    """A public port: ours (`config` is its configuration file), or SGLang's."""

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
    name: str = "router"
    """Of its process, log and configuration file; `router-0`, .. where there are several."""

    @property
    def file(self) -> str:
        """The configuration file in the run folder."""
        return f"{self.name}.json"

    @property
    def admin_url(self) -> str | None:
        """Where orders go: to a loopback port, or with the admin key to the public port; None for
        SGLang's router, which takes none."""
        if self.config is None:
            return None
        port = self.config.get("admin_port")
        return http_url(loopback_like(self.host), port) if port else self.url


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
    routers: tuple[RouterPlan, ...]
    """All of one kind and over the same workers; none where clients are somebody else's."""
    timeouts: Timeouts
    restart: Restart
    problems: tuple[Problem, ...] = ()
    locality: ProfileNeeds | None = None
    worker_key_env: str | None = None
    worker_key_file: str | None = None
    insecure: bool = False
    """The run's keys may go by plain HTTP to other hosts, says the deployment."""
    logs: LogFiles = field(default_factory=LogFiles)
    expert_maps: Mapping[str, Any] = field(default_factory=dict)
    """By file of the run folder, where a decode server's experts lie when it starts."""
    isolate: bool = False
    """It is to be in a network namespace of its own (`toolkit.launch.isolation`)."""

    @property
    def router(self) -> RouterPlan | None:
        """One of this host, where it has any, else the first: for what is the same of all."""
        return next(iter((*self.own_routers, *self.routers)), None)

    @property
    def own_routers(self) -> tuple[RouterPlan, ...]:
        """Those that this launcher starts."""
        return tuple(router for router in self.routers if router.local)

    @property
    def router_config(self) -> Mapping[str, Any]:
        """The configuration of one of our routers; empty without any."""
        return (self.router.config if self.router else None) or {}

    @property
    def keyed(self) -> bool:
        """Whether the workers ask for the run's key. SGLang's router cannot send one: its health
        checks carry none, and whoever knows its `--api-key` must be a client as well."""
        return self.router is None or self.router.kind != "sglang"

    @property
    def open_network(self) -> tuple[str, ...]:
        """Addresses between which the run's keys go by plain HTTP; empty where they stay on one
        machine, or there are none."""
        hosts = {worker.host: worker.address for worker in self.workers}
        for router in self.routers:
            hosts.setdefault(router.node, router.host)
        outside = [address for address in hosts.values() if not is_loopback(address)]
        return tuple(outside) if self.keyed and len(hosts) > 1 else ()

    @property
    def decode_centroids(self) -> int:
        """K, of all decode servers."""
        return sum(w.centroids for w in self.workers if w.role == "decode" and w.url)

    @property
    def entry_url(self) -> str:
        """Where a client may go: a router of this host, if it has one, or the first worker when
        there is none at all."""
        if self.router:
            return self.router.url
        return next(w.url for w in self.workers if w.url)

    @property
    def entry_urls(self) -> tuple[str, ...]:
        """All places where clients may go; `entry_url` is one of them."""
        return tuple(router.url for router in self.routers) or (self.entry_url,)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, for people (plan.json, `--dry-run --json`): without secrets."""
        data = asdict(replace(self, locality=None, expert_maps={}))
        data["locality"] = self.locality.to_json() if self.locality else None
        data["expert_maps"] = list(self.expert_maps)
        data["timeouts"] = self.timeouts.model_dump()
        data["restart"] = self.restart.model_dump()
        data["logs"] = self.logs.model_dump()
        data["problems"] = [str(p) for p in self.problems]
        return masked_plan(data)
