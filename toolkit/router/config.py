"""The router's configuration file: strict JSON, one model, no hidden defaults elsewhere."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from toolkit.bounded_files import Unreadable, read_bytes
from toolkit.contract.addresses import (
    LAST_PORT,
    LOOPBACK,
    Place,
    check_host,
    http_url,
    read_worker_url,
)
from toolkit.errors import ToolkitError
from toolkit.keys import KeysError, from_environment
from toolkit.loopback import is_loopback, open_port
from toolkit.policies import check_policy, follows_experts
from toolkit.policies.rounds.pooling import bare, is_pooled, no_pool
from toolkit.policies.stages.layout import Layout
from toolkit.router.classes import Classes
from toolkit.router.first_token import FirstTokenFrom
from toolkit.router.origins import check_origin
from toolkit.router.rebalance import Rebalance
from toolkit.router.validate.limits import ALLOWABLE, MEDIA, NO_MEDIA

Role = Literal["prefill", "decode", "plain"]
Dispatch = Literal["late", "concurrent"]
MovesBy = Literal["auto", "direct", "replay"]
MOVES_BY: tuple[MovesBy, ...] = get_args(MovesBy)


class ConfigError(ToolkitError, ValueError):
    """The configuration cannot be used; the message says what to change."""


class WorkerConfig(BaseModel):
    """One SGLang server: `url` for HTTP, `bootstrap_*` for its KV bootstrap server. `dp_attention`:
    its DP ranks share their experts; what the worker says of itself when it is up counts more.
    `same_run`: this router's own launcher starts it (`toolkit.router.identity`). `preempts`: it
    stops best-effort prefills between layers for latency-sensitive requests, or pauses answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    role: Role
    url: str
    bootstrap_host: str | None = None
    bootstrap_port: int | None = Field(default=None, ge=1, le=LAST_PORT)
    dp_size: int = Field(default=1, ge=1)
    dp_attention: bool = False
    same_run: bool = False
    preempts: bool = False

    @field_validator("url")
    @classmethod
    def _readable(cls, url: str) -> str:
        place, prefix = read_worker_url(url)
        return http_url(*place) + prefix

    @field_validator("bootstrap_host")
    @classmethod
    def _host_alone(cls, host: str | None) -> str | None:
        return None if host is None else check_host(host)

    @model_validator(mode="after")
    def _prefill_needs_bootstrap(self) -> WorkerConfig:
        if self.role == "prefill" and self.bootstrap_port is None:
            raise ValueError(
                f"prefill worker {self.name!r} needs bootstrap_port "
                "(its --disaggregation-bootstrap-port)"
            )
        return self

    @cached_property
    def place(self) -> Place:
        """Where it listens."""
        return read_worker_url(self.url)[0]

    @cached_property
    def prefix(self) -> str:
        """What stands before every path of it; empty for a worker that is behind none."""
        return read_worker_url(self.url)[1]

    @property
    def host(self) -> str:
        return self.place.host

    @property
    def port(self) -> int:
        return self.place.port


class StageConfig(BaseModel):
    """A stage: so many decode DP ranks for requests of at most `upto` KV tokens (None: any)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    upto: int | None = Field(default=None, ge=1)
    replicas: int = Field(default=1, ge=1)


class RouterConfig(BaseModel):
    """Everything the router can be told. Times are in seconds.

    `parked_per_prefill` bounds the requests that one prefill DP rank may hold whose decode worker
    is not chosen yet: each of them can keep its KV locked there. `silent_s` without any event
    takes a worker out of new decisions, `hung_s` also gives up the requests that it runs. A worker
    whose events say that its HTTP loop has been held up for `silent_s` is taken out as well, and
    keeps what it runs. The defaults suit a CPU; a launcher gives those of the device
    (`toolkit.launch.wait_limits`).
    `rerun_wait_s` is how long a request that already ran somewhere waits for a worker to come
    back; a new one waits `no_worker_wait_s` and then gets 503. Both wait longer for a worker that
    is expected back (`toolkit.decide.returns`), up to `request_timeout_s`.

    Decode policies `br0`, `brh@PREDICTOR`, `level` and `composed` keep finished prefills in a pool
    and bind them in rounds, which needs `dispatch` late; `parked_per_prefill` times prefill ranks
    bounds that pool, and `park_timeout_s` the time in it. Otherwise (concurrent, plain workers)
    they choose for each request as it comes. `gimbal@KV:DIFF:LOAD` serves either side and wants
    requests that say whose they are (`user`, `session_id` or `routing_key` in the body, or header
    `x-smg-routing-key`).

    `moves`: how a running request gets from one decode worker to another: `direct`: the one sends
    its KV to the other and decodes on meanwhile, which wants a bootstrap server of each; `replay`:
    it is prefilled again; `auto`: directly where that is possible (`toolkit.router.moves`).

    `profile` is the absolute path of a profile folder (`toolkit profile`), which `eldr` needs;
    `tau` its locality band; `refit_on_drift` lets it follow traffic that changes its experts.

    `first_token`: whose first token a stream begins with, where `dispatch` is late: `prefill`: the
    prefill worker's, as soon as it is there; `decode`: its decode worker's, which is the same one
    (`toolkit.router.first_token`).

    `lost_s`: see `toolkit.router.rank.Rank`; longer than SGLang compiles a grammar (50 s), which
    no reading shows.

    `stuck_s`: a rank that holds work and makes no step for so long (or for five times what its
    present step should take, if that is longer) is stuck; after half of it the rank gets nothing
    new. `announced_s` is the bound of what is announced and cannot be foreseen, such as the
    compilation of a kernel. A `stuck_s` of 0 never judges (`toolkit.decide.watchdog`).

    `first_token_timeout_s`, `idle_timeout_s`: how long a worker may be silent on a request, before
    its first token and in mid-stream; then it runs elsewhere (`toolkit.router.silence`).
    `eject_share`: at most this share of the healthy workers of a role is left alone because they
    fail (`toolkit.decide.ejection`); 0 ejects none. `max_retries`: how often a request is run again
    when workers fail it; a poisonous one gets its error earlier (`toolkit.decide.poison`).
    Bounds before work. `max_parts`: parts (prompts times n) that one request may have; all
    that run and wait are at most `max_inflight` + `max_queue` parts, batches three quarters of it.
    `max_body_mib` for one body, `max_body_total_mib` for the memory of all that are read, parsed,
    queued or run (`toolkit.router.budget`). A connection has `head_timeout_s` for each head, of
    `max_head_kib` at most, `keepalive_s` between requests, and for a body `body_timeout_s` and a
    pace of `body_pace_kib` KiB/s in each `body_window_s` (`toolkit.router.bodies`).
    What is not an ordinary body is parsed and checked in processes, with `parse_cpu_ms` of CPU time
    and half a second more for each MiB (`toolkit.router.parsing`). A client whose connection takes
    nothing for `write_stall_s` while something waits to be written to it is dropped. Above
    `max_connections` (less where file descriptors are few) idle ones are closed, else the new one
    gets 503. `accept_gzip`: take bodies with `Content-Encoding: gzip`; otherwise 415.
    Clients send one of the keys in the variable `api_key_env` or the file `api_keys_file` (a line
    each, `KEY` or `NAME: KEY`); the admin that in `admin_key_env` or `admin_key_file`. Without an
    admin key, /admin/* and abort_all answer only at `admin_port` on loopback (0: nowhere). A host
    that is not loopback wants client keys, or `open`.
    The workers' key in `worker_api_key_env` goes by plain HTTP: to a worker on another host (not
    loopback, not the router's own `host`, not of its launcher's run) only with `insecure`.

    `stages` share the decode ranks out, in their order, among ranges of lengths
    (`toolkit.policies.stages`); None: all ranks serve all lengths. `rebalance`: requests move
    between decode ranks while they run (`toolkit.router.rebalance`).

    `record`: absolute path of a file to which the lengths and times of all requests are appended
    (`toolkit.router.recording`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = LOOPBACK
    port: int = Field(default=30000, ge=0, le=65535)
    api_key_env: str | None = None
    api_keys_file: str | None = None
    admin_key_env: str | None = None
    admin_key_file: str | None = None
    admin_port: int = Field(default=0, ge=0, le=65535)
    open: bool = False
    dispatch: Dispatch = "late"
    first_token: FirstTokenFrom = "prefill"
    prefill_policy: str = "round_robin"
    decode_policy: str = "shortest_queue"
    seed: int = 0
    moves: MovesBy = "auto"
    profile: str | None = None
    tau: float = Field(default=0.1, ge=0, le=1, allow_inf_nan=False)
    refit_on_drift: bool = True
    record: str | None = None
    workers: tuple[WorkerConfig, ...]
    worker_api_key_env: str | None = None
    insecure: bool = False
    max_inflight: int = Field(default=256, ge=1)
    max_queue: int = Field(default=512, ge=0)
    parked_per_prefill: int = Field(default=8, ge=1)
    park_timeout_s: float = Field(default=30.0, gt=0)
    request_timeout_s: float = Field(default=600.0, gt=0)
    prefill_wait_s: float = Field(default=60.0, gt=0)
    connect_timeout_s: float = Field(default=2.0, gt=0)
    silent_s: float = Field(default=1.5, gt=0)
    hung_s: float = Field(default=5.0, gt=0)
    lost_s: float = Field(default=60.0, gt=0)
    stuck_s: float = Field(default=5.0, ge=0)
    announced_s: float = Field(default=120.0, gt=0)
    no_worker_wait_s: float = Field(default=1.0, ge=0)
    rerun_wait_s: float = Field(default=60.0, ge=0)
    first_token_timeout_s: float = Field(default=120.0, gt=0)
    idle_timeout_s: float = Field(default=60.0, gt=0)
    eject_share: float = Field(default=0.5, ge=0, le=1)
    max_retries: int = Field(default=3, ge=0)
    drain_timeout_s: float = Field(default=30.0, ge=0)
    max_body_mib: int = Field(default=64, ge=1)
    classes: Classes | None = None
    """How latency-sensitive and best-effort requests are told apart; None: they are not."""
    allow: frozenset[str] = frozenset()
    """What clients may do beyond plain requests: names of `toolkit.router.validate.ALLOWABLE`."""
    stages: tuple[StageConfig, ...] | None = None
    rebalance: Rebalance | None = None
    """Moves of running requests; None: with stages the defaults, without them none."""
    max_body_total_mib: int = Field(default=256, ge=2)
    max_parts: int = Field(default=512, ge=1)
    max_connections: int = Field(default=16384, ge=1)
    max_head_kib: int = Field(default=32, ge=1)
    head_timeout_s: float = Field(default=15.0, gt=0)
    keepalive_s: float = Field(default=75.0, gt=0)
    body_timeout_s: float = Field(default=300.0, gt=0)
    body_window_s: float = Field(default=10.0, gt=0)
    body_pace_kib: float = Field(default=16.0, ge=0, allow_inf_nan=False)
    accept_gzip: bool = False
    parse_cpu_ms: float = Field(default=100.0, gt=0, allow_inf_nan=False)
    write_stall_s: float = Field(default=20.0, gt=0, allow_inf_nan=False)
    cors: tuple[str, ...] = ()
    """Origins whose web pages may read answers (`toolkit.router.cross_origin`); `*`: every page."""
    debug: bool = False
    """Log the lines of code that led to unexpected errors; never what they were about."""
    incremental_streaming: bool = False
    """True when the workers run with --incremental-streaming-output (/generate sends deltas)."""

    @field_validator("prefill_policy")
    @classmethod
    def _known_prefill(cls, name: str) -> str:
        check_policy(name, "prefill")
        return name

    @field_validator("decode_policy")
    @classmethod
    def _known_decode(cls, name: str) -> str:
        check_policy(name, "decode")
        return name

    @field_validator("allow")
    @classmethod
    def _known_permissions(cls, names: frozenset[str]) -> frozenset[str]:
        for name in sorted(names - ALLOWABLE.keys()):
            raise ValueError(f"{name!r} is none of {', '.join(sorted(ALLOWABLE))}")
        if "media_urls" in names and "media" not in names:
            raise ValueError("'media_urls' needs 'media' too")
        return names

    @field_validator("host")
    @classmethod
    def _host_alone(cls, host: str) -> str:
        return check_host(host)

    @field_validator("cors")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_origin(origin) for origin in origins)

    @field_validator("stages")
    @classmethod
    def _stages_are_ranges(
        cls, stages: tuple[StageConfig, ...] | None
    ) -> tuple[StageConfig, ...] | None:
        if stages is not None:
            Layout.of((stage.upto, stage.replicas) for stage in stages)
        return stages

    @field_validator("profile", "record", "api_keys_file", "admin_key_file")
    @classmethod
    def _absolute(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is not None and not Path(path).is_absolute():
            what = "a profile folder" if info.field_name == "profile" else "a file"
            raise ValueError(f"{path!r} must be the absolute path of {what}")
        return path

    @model_validator(mode="after")
    def _ports(self) -> RouterConfig:
        if self.admin_key_env and self.admin_key_file:
            raise ValueError("admin_key_env and admin_key_file both name the admin key: leave one")
        if self.admin_port and self.admin_port == self.port:
            raise ValueError(f"admin_port and port are both {self.port}: give them different ones")
        keys = self.api_key_env or self.api_keys_file
        if not (keys or self.open or is_loopback(self.host)):
            raise ValueError(open_port(self.host))
        return self

    @model_validator(mode="after")
    def _workers_fit_together(self) -> RouterConfig:
        names = [worker.name for worker in self.workers]
        if len(set(names)) != len(names):
            raise ValueError(f"worker names must differ, got {names}")
        roles = {worker.role for worker in self.workers}
        if roles != {"plain"} and roles != {"prefill", "decode"}:
            raise ValueError(
                "workers must be all 'plain', or at least one 'prefill' and one 'decode'; "
                f"got roles {sorted(roles)}"
            )
        if self.disaggregated and not MEDIA.isdisjoint(self.allow):
            raise ValueError(f"allow: {NO_MEDIA}")
        return self

    @model_validator(mode="after")
    def _the_key_stays_on_the_machine(self) -> RouterConfig:
        if self.worker_api_key_env is None or self.insecure:
            return self
        for worker in self.workers:
            if not (worker.same_run or is_loopback(worker.host) or worker.host == self.host):
                raise ValueError(
                    f"the key in worker_api_key_env ({self.worker_api_key_env}) would go to "
                    f"{worker.name} ({worker.url}) by plain HTTP: say `insecure: true` where "
                    "nobody else is on that network"
                )
        return self

    @model_validator(mode="after")
    def _stages_have_their_ranks(self) -> RouterConfig:
        if self.layout is None:
            return self
        if not self.disaggregated or self.dispatch != "late":
            raise ValueError(
                "stages are chosen by a request's length after its prefill: use prefill and decode "
                "workers and dispatch 'late', or remove them"
            )
        ranks = sum(worker.dp_size for worker in self.workers if worker.role == "decode")
        if self.layout.ranks != ranks:
            raise ValueError(
                f"stages have {self.layout.ranks} replicas in all, but there are {ranks} decode "
                "ranks: count every DP rank once"
            )
        return self

    @model_validator(mode="after")
    def _moves_have_somewhere_to_go(self) -> RouterConfig:
        if self.rebalance is not None and not self.disaggregated:
            raise ValueError("rebalance moves requests between decode workers: plain ones do both")
        if self.rebalance is not None and self.rebalance.refine_s and self.rebalance.qoe is None:
            raise ValueError(
                "refine_s finds bounds by `qoe`, D_0 to D_4 of a profile: give them, or leave it 0"
            )
        return self

    @model_validator(mode="after")
    def _one_body_fits(self) -> RouterConfig:
        if self.max_body_total_mib * 3 < self.max_body_mib * 8:
            raise ValueError(
                f"max_body_total_mib {self.max_body_total_mib} is too small for a body of "
                f"max_body_mib {self.max_body_mib}: it takes at least 8/3 of it"
            )
        return self

    @model_validator(mode="after")
    def _eldr_has_what_it_needs(self) -> RouterConfig:
        if self.profile is not None and not self.disaggregated:
            raise ValueError(
                "profile is of use only with prefill and decode workers: remove it, since plain "
                "workers send no signatures"
            )
        wrong = why_not(self.decode_policy, self, self.dispatch)
        if wrong is not None:
            raise ValueError(wrong)
        return self

    @property
    def layout(self) -> Layout | None:
        """Its stages; None where there are none."""
        if self.stages is None:
            return None
        return Layout.of((stage.upto, stage.replicas) for stage in self.stages)

    @property
    def rebalancing(self) -> Rebalance | None:
        """How running requests are moved; None where they are not."""
        given = self.rebalance or (None if self.stages is None else Rebalance())
        return given if given is not None and given.on else None

    @property
    def disaggregated(self) -> bool:
        return self.workers[0].role != "plain"

    def secret(self, env_name: str | None) -> str | None:
        """The value of an environment variable that holds a key; ConfigError when it is unset."""
        try:
            return None if env_name is None else from_environment(env_name)
        except KeysError as error:
            raise ConfigError(str(error)) from error


def why_not(decode_policy: str, config: RouterConfig, dispatch: str) -> str | None:
    """Why this decode policy, or the stages, cannot work in this deployment with this dispatch, and
    what to do; None when they can."""
    if config.stages is not None and dispatch != "late":
        return "stages are chosen by length, which is known after the prefill: keep dispatch 'late'"
    if is_pooled(decode_policy) and (wrong := no_pool(config.disaggregated, dispatch)):
        return f"decode_policy {decode_policy}: {wrong}, or {bare(decode_policy)}"
    if not follows_experts(decode_policy):
        return None
    base = bare(decode_policy).partition("@")[0]
    other = "or use another decode_policy"
    if base != "eldr":
        other = f"or leave its part eldr out, as in {base}@filter+level+user"
    if not config.disaggregated:
        return (
            f"decode_policy {base} routes by what a prefill worker learned: use prefill and decode "
            f"workers, {other}"
        )
    if config.profile is None:
        return (
            f"decode_policy {base} needs `profile`, the absolute path of a profile folder (make "
            f"one with `toolkit profile`), {other}"
        )
    if dispatch != "late":
        return (
            f"decode_policy {base} chooses after the prefill, which dispatch 'concurrent' does not "
            f"wait for: set dispatch to 'late', {other}"
        )
    return None


def load_config(path: str | Path) -> RouterConfig:
    """Read and check a configuration file; ConfigError names the file and each wrong field."""
    try:
        return RouterConfig.model_validate_json(read_bytes(Path(path)))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except Unreadable as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, item['loc'])) or '(file)'}: {item['msg']}"
            for item in error.errors()
        ]
        raise ConfigError(f"{path} is not a router configuration:\n" + "\n".join(lines)) from error
