"""The deployment file: what a user writes. Strict: an unknown key is an error.

Everything has a default but `name`; `toolkit.launch.resolve` turns it into exact commands. The
same file serves `device: cpu` and `device: cuda`: nothing in it is tied to the device unless put
into `args`.
"""

from __future__ import annotations

import difflib
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from toolkit.contract.addresses import LOOPBACK, check_host
from toolkit.contract.preempting import Preempting
from toolkit.contract.preempting import from_yaml as preempt_yaml
from toolkit.contract.waiting import Waiting, from_yaml
from toolkit.launch import acting
from toolkit.launch.dp_policy import check_roles
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.staged import StageSpec, check_shape, layout_of, with_replicas
from toolkit.launch.yaml_lines import line_of, read_document
from toolkit.loopback import is_loopback, open_port
from toolkit.policies import check_policy
from toolkit.policies.preemption.named import boundary_policy
from toolkit.policies.stages.layout import Layout
from toolkit.router.classes import Classes
from toolkit.router.config import MovesBy
from toolkit.router.origins import check_origin
from toolkit.router.rebalance import Rebalance
from toolkit.router.rebalance import from_yaml as rebalance_yaml
from toolkit.router.validate.limits import ALLOWABLE

Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
ROLES = ("prefill", "decode", "worker")


SENDING = ("auto", "mooncake", "mooncake_tcp")
"""Backends with which decode workers send KV to one another (`patches.move`)."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Strict):
    """Which weights. `embedded` is the small model that ships with the toolkit."""

    path: str = "embedded"
    served_name: str | None = None
    config: str | None = Field(
        default=None,
        description="folder whose config.json stands in for checks while weights are absent",
    )
    context_length: Count | None = None
    trust_remote_code: bool = False


class Role(_Strict):
    """The workers of one role: all replicas alike. Sizes are per replica."""

    replicas: Count = 1
    nodes: Count = Field(default=1, description="hosts that one replica spans")
    hosts: list[str] | None = Field(
        default=None, description="host names, `nodes` for each replica"
    )
    tp: Count = 1
    dp: Count = 1
    ep: Count = 1
    dp_attention: bool = False
    dp_policy: str | None = Field(
        default=None,
        description="how SGLang itself chooses the DP rank of a request: a policy, or its own "
        "method; without our router, which chooses ranks itself",
    )
    gpus: list[int] | None = Field(
        default=None, description="GPU indices on each host; default: next free"
    )
    kv_tokens: Count | None = Field(default=None, description="KV budget in tokens, per DP rank")
    max_running: Count | None = Field(default=None, description="requests in flight, per server")
    mem_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    background: bool = Field(
        default=False,
        description="the model computes while nothing else wants the core (workers share few)",
    )
    early_place: bool = Field(
        default=False,
        description="decode ranks of one process each look at new requests while a step runs too",
    )
    relocate: bool = Field(
        default=False, description="its experts can be moved to other GPUs while it serves"
    )
    expert_placement: Literal["clusters"] | None = Field(
        default=None,
        description="decode only: each server starts with its experts (redundant ones too) placed "
        "by the requests of `router.profile` that ELDR sends to it",
    )
    waiting: Annotated[Waiting, BeforeValidator(from_yaml)] = Field(
        default=Waiting(order="fcfs"), description="in which order waiting prompts are prefilled"
    )
    preempt: Annotated[Preempting | None, BeforeValidator(preempt_yaml)] = Field(
        default=None, description="best-effort prompts give way to latency-sensitive requests"
    )
    stages: list[StageSpec] | None = Field(
        default=None,
        description="decode only: ranges of lengths in KV tokens, shortest first, and the servers "
        "of each: `[{upto: 512, replicas: 2}, {replicas: 1}]`",
    )
    port: Port | None = None
    bootstrap_port: Port | None = None
    args: dict[str, Any] = Field(default_factory=dict, description="more SGLang flags")
    env: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _as_many_as_its_stages(cls, data: Any) -> Any:
        return with_replicas(data)

    @field_validator("stages")
    @classmethod
    def _stages_are_ranges(cls, stages: list[StageSpec] | None) -> list[StageSpec] | None:
        if stages is not None:
            check_shape(stages)
        return stages

    @field_validator("preempt")
    @classmethod
    def _known_boundary_policy(cls, preempt: Preempting | None) -> Preempting | None:
        if preempt is not None and ":" not in preempt.policy:  # one's own is the worker's to import
            boundary_policy(preempt.policy)
        return preempt

    @model_validator(mode="after")
    def _sizes(self) -> Role:
        if self.dp_attention and self.tp % self.dp:
            raise ValueError(f"dp_attention: tp ({self.tp}) must be a multiple of dp ({self.dp})")
        if self.tp % self.ep:
            raise ValueError(f"tp ({self.tp}) must be a multiple of ep ({self.ep})")
        several = self.ep > 1 and self.ep == self.tp
        if self.relocate and not several:
            raise ValueError(
                f"relocate: experts move between GPUs: set ep to tp ({self.tp}), 2 or more, "
                f"not {self.ep}"
            )
        if self.expert_placement and not several:
            raise ValueError(
                f"expert_placement: experts lie on several GPUs: set ep to tp ({self.tp}), 2 or "
                f"more, not {self.ep}"
            )
        if self.ranks % self.nodes:
            raise ValueError(f"{self.ranks} ranks do not spread evenly over {self.nodes} nodes")
        if self.nodes > 1 and self.dp > 1 and not self.dp_attention:
            raise ValueError("dp over several nodes needs dp_attention: true (SGLang)")
        if self.dp_policy is not None and self.dp == 1:
            raise ValueError(f"dp_policy: {self.dp_policy} chooses among DP ranks: set dp above 1")
        if self.stages is not None:
            layout_of(self.stages, self.replicas, self.dp, self.dp_attention)
        return self

    @property
    def layout(self) -> Layout | None:
        """Its stages, in DP ranks; None where it has none."""
        if self.stages is None:
            return None
        return layout_of(self.stages, self.replicas, self.dp, self.dp_attention)

    @property
    def ranks(self) -> int:
        """GPUs (or CPU scheduler processes) of one replica."""
        return self.tp if self.dp_attention else self.tp * self.dp


class Transfer(_Strict):
    """How KV moves. `auto`: mooncake_tcp on CPU, mooncake on CUDA."""

    backend: Literal["auto", "mooncake", "mooncake_tcp", "nixl", "mori", "ascend", "fake"] = "auto"
    ib_device: str | None = None


class Router(_Strict):
    """The public port. Limits are those of `toolkit.router`; unset ones keep its defaults."""

    kind: Literal["toolkit", "sglang", "none"] = "toolkit"
    host: Annotated[str, AfterValidator(check_host)] = LOOPBACK
    port: Port | None = None
    node: str | None = Field(
        default=None, description="name of the host it runs on; default: the first"
    )
    dispatch: Literal["late", "concurrent"] | None = None
    first_token: Literal["prefill", "decode"] | None = None
    prefill_policy: str | None = None
    decode_policy: str | None = None
    profile: str | None = Field(
        default=None,
        description="folder of `toolkit profile`, for expert locality; `embedded`: the shipped one",
    )
    tau: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="width of ELDR's locality band in cosine"
    )
    refit_on_drift: bool | None = Field(
        default=None, description="new centroids when the traffic's experts have changed"
    )
    record: str | None = Field(
        default=None,
        description="file to which times and lengths of all requests go, for plan and simulate",
    )
    seed: int = 0
    api_key_env: str | None = Field(
        default=None, description="name of the variable that holds the key of clients"
    )
    api_keys_file: str | None = Field(
        default=None, description="file of client keys, a line each: KEY or NAME: KEY (mode 600)"
    )
    admin_key_env: str | None = Field(
        default=None, description="name of the variable that holds the key for /admin/*"
    )
    admin_key_file: str | None = Field(default=None, description="file that holds it (mode 600)")
    admin_port: Port | None = Field(
        default=None, description="loopback port for /admin/* where there is no admin key"
    )
    open: bool = Field(
        default=False, description="strangers may use a public port that is not loopback"
    )
    allow: tuple[str, ...] = Field(
        default=(),
        description="what clients may do beyond plain requests (see What clients may send)",
    )
    classes: Classes | None = Field(
        default=None,
        description="how latency-sensitive and best-effort requests are told apart; "
        "`{}`: by what they say themselves",
    )
    moves: MovesBy | None = Field(
        default=None,
        description="how running requests get from one decode worker to another: `direct` (it "
        "sends their KV), `replay` (they are prefilled again), `auto` (directly where possible)",
    )
    rebalance: Annotated[Rebalance | None, BeforeValidator(rebalance_yaml)] = Field(
        default=None,
        description="requests move between decode workers while they run; `true`: with the "
        "defaults, as with `decode.stages` in any case; `false`: never",
    )
    max_inflight: Count | None = None
    max_queue: Annotated[int, Field(ge=0)] | None = None
    parked_per_prefill: Count | None = None
    park_timeout_s: Seconds | None = None
    request_timeout_s: Seconds | None = None
    silent_s: Seconds | None = None
    hung_s: Seconds | None = None
    lost_s: Seconds | None = None
    first_token_timeout_s: Seconds | None = None
    idle_timeout_s: Seconds | None = None
    eject_share: Annotated[float, Field(ge=0, le=1)] | None = None
    max_retries: Annotated[int, Field(ge=0)] | None = None
    max_parts: Count | None = None
    max_body_mib: Count | None = None
    max_body_total_mib: Annotated[int, Field(ge=2)] | None = None
    max_connections: Count | None = None
    head_timeout_s: Seconds | None = None
    keepalive_s: Seconds | None = None
    body_timeout_s: Seconds | None = None
    body_pace_kib: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    accept_gzip: bool | None = None
    parse_cpu_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    write_stall_s: Seconds | None = None
    cors: list[Annotated[str, AfterValidator(check_origin)]] | None = Field(
        default=None,
        description="origins whose web pages may use it (CORS), as `https://HOST`; `*`: all",
    )
    args: dict[str, Any] = Field(default_factory=dict, description="more sglang_router flags")

    @field_validator("allow")
    @classmethod
    def _known_permissions(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in ALLOWABLE:
                raise ValueError(f"{name!r} is none of {', '.join(sorted(ALLOWABLE))}")
        return names

    @model_validator(mode="after")
    def _ports(self) -> Router:
        if self.admin_key_env and self.admin_key_file:
            raise ValueError("admin_key_env and admin_key_file both name the admin key: leave one")
        if self.admin_port and (self.admin_key_env or self.admin_key_file):
            raise ValueError("admin_port is for a router without an admin key: remove one of them")
        keys = self.api_key_env or self.api_keys_file
        if self.kind == "none" or keys or self.open or is_loopback(self.host):
            return self
        if self.kind == "sglang":
            raise ValueError(
                f"host {self.host} is not loopback and SGLang's router asks nobody for a key: use "
                "kind: toolkit with api_key_env, or say `open: true` where something else keeps "
                "strangers away"
            )
        raise ValueError(open_port(self.host))

    @field_validator("*")
    @classmethod
    def _can_act(cls, value: Any, info: ValidationInfo) -> Any:
        kind = info.data.get("kind")
        if kind is not None and value is not None and value != {}:
            dispatch = info.data.get("dispatch")
            if why := acting.router_problem(str(info.field_name), kind, dispatch):
                raise ValueError(why)
        return value

    @field_validator("prefill_policy", "decode_policy")
    @classmethod
    def _known_policy(cls, name: str | None, info: ValidationInfo) -> str | None:
        kind = info.data.get("kind")
        if name is None or kind is None:
            return name
        if kind == "toolkit":
            check_policy(name, str(info.field_name).removesuffix("_policy"))
        elif why := acting.policy_problem(str(info.field_name), name):
            raise ValueError(why)
        return name


class Host(_Strict):
    address: Annotated[str, AfterValidator(check_host)]
    gpus: Count | None = Field(
        default=None, description="how many GPUs it has; default: counted, or 8"
    )


class Timeouts(_Strict):
    """Seconds."""

    start: Seconds = 600
    generation: Seconds = 120
    drain: Seconds = 60
    stop: Seconds = 15


class Restart(_Strict):
    """A process that dies is started again after `first_delay * 2^n` s, at most `max_delay`. The
    (`max_restarts` + 1)-th death within `window` s ends a start-up. Later it rests: it is tried
    after `rest_first * 2^n` s, at most `rest_max`, until it has been ready for `window` s.

    A worker that holds work and makes no step for `stuck_s` s is ended and started again; what it
    has announced and cannot foresee may last `announced_s` (`toolkit.decide.watchdog`). None: as
    the device wants it (`toolkit.launch.wait_limits`); a `stuck_s` of 0: nobody looks."""

    max_restarts: Annotated[int, Field(ge=0)] = 5
    window: Seconds = 300
    first_delay: Seconds = 1
    max_delay: Seconds = 30
    rest_first: Seconds = 60
    rest_max: Seconds = 600
    stuck_s: Annotated[float, Field(ge=0)] | None = None
    announced_s: Seconds | None = None


class LogFiles(_Strict):
    """One log a process, only for its owner to read: it rotates when it has `max_mib` MiB, and
    `keep` older ones stay beside it (`NAME.log.1` is the youngest of them)."""

    max_mib: Annotated[float, Field(gt=0)] = 32
    keep: Annotated[int, Field(ge=0, le=100)] = 3


def _is_ipv4(host: str) -> bool:
    try:
        return ip_address(host).version == 4
    except ValueError:
        return False


def _model(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


def _router(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


class Deployment(_Strict):
    """A whole deployment file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    device: Literal["cpu", "cuda"] = "cpu"
    mode: Literal["pd", "plain"] = "pd"
    model: Annotated[Model, BeforeValidator(_model)] = Model()
    prefill: Role = Role()
    decode: Role = Role()
    worker: Role = Role()
    capture_experts: bool = Field(
        default=False, description="workers keep the experts of every token (profile, signatures)"
    )
    transfer: Transfer = Transfer()
    router: Annotated[Router, BeforeValidator(_router)] = Router()
    hosts: dict[str, Host] = Field(default_factory=dict)
    base_port: Port = Field(
        default=30000, description="first port on every host, several hosts only"
    )
    worker_key_env: str | None = Field(
        default=None, description="name of the variable with the workers' key, on every host"
    )
    worker_key_file: str | None = Field(default=None, description="file that holds it (mode 600)")
    insecure: bool = Field(
        default=False,
        description="the run's keys may go by plain HTTP to other hosts; for a network that "
        "nobody else is on",
    )
    env: dict[str, str] = Field(default_factory=dict)
    timeouts: Timeouts = Timeouts()
    restart: Restart = Restart()
    logs: LogFiles = LogFiles()
    isolate: bool = Field(
        default=False, description="a network namespace of its own, but for the public port (Linux)"
    )
    folder: Path = Field(default=Path(), exclude=True, description="where relative paths start")

    @property
    def sends(self) -> bool:
        """Whether decode workers can send running requests to one another: each has a KV bootstrap
        server then."""
        router, backend = self.router, self.transfer.backend
        wanted = router.kind == "toolkit" and router.moves != "replay"
        return self.mode == "pd" and wanted and backend in SENDING

    @field_validator(*ROLES)
    @classmethod
    def _role_can_act(cls, role: Role, info: ValidationInfo) -> Role:
        name, device = str(info.field_name), info.data.get("device")
        mode = info.data.get("mode")  # not there where it is wrong itself
        if mode is not None and (why := acting.wrong_role(name, mode)):
            raise ValueError(why)
        if device is not None:
            keys = acting.given(role, also_false=False)
            acting.refuse({key: acting.role_problem(key, name, device) for key in keys})
        return role

    @field_validator("transfer")
    @classmethod
    def _transfer_can_act(cls, transfer: Transfer, info: ValidationInfo) -> Transfer:
        mode, device = info.data.get("mode", "pd"), info.data.get("device", "cuda")
        keys = acting.given(transfer)
        acting.refuse(
            {key: acting.transfer_problem(key, mode, device, transfer.backend) for key in keys}
        )
        return transfer

    @field_validator("router")
    @classmethod
    def _router_can_act(cls, router: Router, info: ValidationInfo) -> Router:
        if info.data.get("mode") == "plain":
            keys = acting.given(router)
            acting.refuse({key: acting.plain_problem(key, router.kind) for key in keys})
        pd, policy = info.data.get("mode") != "plain", router.decode_policy
        acting.refuse({"decode_policy": acting.pool_problem(policy, pd, router.dispatch)})
        acting.refuse({"allow": acting.media_problem(router.allow, pd)})
        return router

    @field_validator("base_port")
    @classmethod
    def _several_hosts_count_ports(cls, port: int, info: ValidationInfo) -> int:
        hosts = info.data.get("hosts")
        if hosts is not None and len(hosts) < 2:
            raise ValueError("one host looks for free ports: set port of a role, or remove it")
        return port

    @field_validator("decode")
    @classmethod
    def _decode_prefills_nothing(cls, role: Role) -> Role:
        if role.waiting.order != "fcfs":
            raise ValueError("waiting: decode workers prefill nothing: set it under prefill")
        if role.preempt is not None and not role.preempt.only_bounds:
            raise ValueError("preempt: of a decode worker only pauses and seconds have a meaning")
        if role.early_place and role.ranks > role.dp:
            raise ValueError(
                f"early_place: each of the {role.dp} DP ranks is {role.ranks // role.dp} processes "
                "that must look together: remove it, or set dp_attention and dp to tp"
            )
        return role

    @field_validator("prefill", "worker")
    @classmethod
    def _only_decode_gives_places(cls, role: Role) -> Role:
        if role.early_place:
            raise ValueError("early_place: only decode workers wait for KV: set it under decode")
        if role.stages is not None:
            raise ValueError("stages: are of decode workers: set them under decode (mode: pd)")
        return role

    @model_validator(mode="after")
    def _one_worker_key(self) -> Deployment:
        if self.worker_key_env and self.worker_key_file:
            raise ValueError("worker_key_env and worker_key_file both name the key: leave one")
        return self

    @model_validator(mode="after")
    def _alone_on_one_machine(self) -> Deployment:
        if not self.isolate:
            return self
        if self.hosts:
            raise ValueError("isolate: is for a single machine: remove hosts, or close the ports")
        if self.router.kind != "toolkit":
            raise ValueError("isolate: only our router takes clients from outside: kind: toolkit")
        if not is_loopback(self.router.host) and not _is_ipv4(self.router.host):
            raise ValueError("isolate: give router.host as an IPv4 address, or leave it out")
        return self

    @model_validator(mode="after")
    def _who_knows_of_stages(self) -> Deployment:
        if self.decode.stages is None:
            return self
        if self.router.kind != "toolkit":
            raise ValueError("decode.stages: only our router knows lengths: use kind: toolkit")
        if self.router.dispatch == "concurrent":
            raise ValueError(
                "decode.stages: a request's length is known after its prefill: use dispatch: late"
            )
        return self

    @model_validator(mode="after")
    def _dp_policies(self) -> Deployment:
        check_roles(self)
        return self

    def on_device(self, device: str) -> Deployment:
        """The same deployment on the other device, without what only the first one could do."""
        data = self.model_dump(exclude_unset=True) | {"device": device, "folder": self.folder}
        acting.without_other_device(data, device, ROLES)
        return Deployment.model_validate(data)

    def path_of(self, path: str) -> Path:
        """A path of the file, absolute: relative ones start where the file is."""
        return self.folder.resolve() / Path(path).expanduser()

    @property
    def roles(self) -> dict[str, Role]:
        """The roles that this mode starts, in start order."""
        if self.mode == "plain":
            return {"worker": self.worker}
        return {"prefill": self.prefill, "decode": self.decode}


def load_deployment(path: str | Path) -> Deployment:
    """Read and check a deployment file. Raises LaunchError with every problem at once."""
    path = Path(path)
    data, lines = read_document(path)
    if "folder" in data:
        where = f"{path}:{line_of(lines, ('folder',))}"
        raise LaunchError([Problem(where, "unknown key 'folder'", "remove it")])
    try:
        return Deployment(**{**data, "folder": path.resolve().parent})
    except ValidationError as error:
        problems = []
        for item in error.errors():
            location = tuple(str(p) if not isinstance(p, int) else p for p in item["loc"])
            line = line_of(lines, location)
            where = f"{path}:{line}" if line else str(path)
            problems.append(_explain(where, location, item))
        raise LaunchError(problems) from error


def _explain(where: str, location: tuple[str | int, ...], item: Any) -> Problem:
    dotted = ".".join(str(p) for p in location)
    if item["type"] != "extra_forbidden":
        message = item["msg"].removeprefix("Value error, ")
        return Problem(where, f"{dotted}: {message}" if dotted else message)
    key = str(location[-1])
    known = sorted(_keys_at(location[:-1]))
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    repair = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    if len(location) == 2 and location[0] in ROLES:
        repair += f" (SGLang's own flags go under {location[0]}.args)"
    return Problem(where, f"unknown key {dotted!r}", repair)


def _keys_at(location: tuple[str | int, ...]) -> set[str]:
    """Keys that the schema knows at `location`."""
    if location[:1] == ("hosts",):
        return set(Host.model_fields)
    model: type[BaseModel] = Deployment
    for part in location:
        field = model.model_fields.get(str(part))
        for inner in _parts(field.annotation) if field else ():
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    return set(model.model_fields) - {"folder"}


def _parts(annotation: Any) -> list[Any]:
    """A type and all types inside it."""
    inside = [part for each in get_args(annotation) for part in _parts(each)]
    return [annotation, *inside]
