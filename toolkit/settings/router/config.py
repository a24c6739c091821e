"""The router's own file, strict JSON: what a deployment file may say and its launcher adds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator

from toolkit.errors import ToolkitError
from toolkit.keys import KeysError, from_environment
from toolkit.loopback import is_loopback, open_port
from toolkit.policies import check_policy, follows_experts
from toolkit.policies.rounds.pooling import bare, is_pooled, no_pool
from toolkit.policies.stages.layout import Layout
from toolkit.policies.support.rotation import seed_of
from toolkit.settings.router.access import Access
from toolkit.settings.router.bounds import Bodies, Stuck, Waits
from toolkit.settings.router.choosing import Choosing
from toolkit.settings.router.permissions import MEDIA, NO_MEDIA
from toolkit.settings.router.rebalance import Rebalance
from toolkit.settings.router.worker import WorkerConfig
from toolkit.settings.section import Count, Natural, Seconds, key
from toolkit.settings.stages import Stage

Delay = Annotated[float, Field(ge=0)]


class ConfigError(ToolkitError, ValueError):
    """The configuration cannot be used; the message says what to change."""


class RouterConfig(Stuck, Bodies, Waits, Choosing, Access):
    """Everything the router can be told: what section `router` of a deployment file may say too,
    with the same defaults, and what the launcher knows. Times are in seconds.

    `profile`, `record` and the files of keys are absolute paths here. The workers' key in
    `worker_api_key_env` goes by plain HTTP: to a worker on another host (not loopback, not the
    router's own `host`, not of its launcher's run) only with `insecure`. `stages` share the decode
    ranks out, in their order, among ranges of lengths (`toolkit.policies.stages`); None: all ranks
    serve all lengths. `rebalance`: None: with stages the defaults, without them no moves.

    `rerun_wait_s` and `no_worker_wait_s`: both are longer for a worker that is expected back
    (`toolkit.decide.returns`), up to `request_timeout_s`.
    """

    port: int = Field(default=30000, ge=0, le=65535)
    admin_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="where /admin/* and abort_all answer without an admin key; 0: nowhere",
    )
    workers: tuple[WorkerConfig, ...]
    worker_api_key_env: str | None = None
    insecure: bool = False
    stages: tuple[Stage, ...] | None = None
    number: Natural = key(
        0,
        "which one it is of several over the same workers, from 0: each begins its rotations "
        "elsewhere and draws by chance for itself",
    )
    routers_here: Count = key(
        1, "how many of them run on this machine: `relays: auto` divides its cores by it"
    )
    prefill_wait_s: Seconds = key(60.0, "how long a request waits for word of its prefill, seconds")
    connect_timeout_s: Seconds = key(2.0, "how long a connection to a worker may take, seconds")
    no_worker_wait_s: Delay = key(
        1.0, "how long a new request waits for a worker to come back; then 503, seconds"
    )
    rerun_wait_s: Delay = key(60.0, "the same of one that has run already, seconds")
    drain_timeout_s: Delay = key(
        30.0, "how long requests that run have when the router ends, seconds"
    )
    max_head_kib: Count = key(32, "the largest head of a request, KiB; larger ones get 400")
    body_window_s: Seconds = key(10.0, "over how long the pace of a body is averaged, seconds")
    debug: bool = key(
        False, "log the lines of code that led to unexpected errors; never what they were about"
    )
    incremental_streaming: bool = key(
        False, "workers run with --incremental-streaming-output (/generate sends deltas)"
    )

    @field_validator("prefill_policy", "decode_policy")
    @classmethod
    def _known_policy(cls, name: str, info: ValidationInfo) -> str:
        check_policy(name, str(info.field_name).removesuffix("_policy"))
        return name

    @field_validator("stages")
    @classmethod
    def _stages_are_ranges(cls, stages: tuple[Stage, ...] | None) -> tuple[Stage, ...] | None:
        if stages is not None:
            Layout.of((stage.upto, stage.replicas) for stage in stages)
        return stages

    @field_validator("profile", "record", "record_decisions", "api_keys_file", "admin_key_file")
    @classmethod
    def _absolute(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is not None and not Path(path).is_absolute():
            what = "a profile folder" if info.field_name == "profile" else "a file"
            raise ValueError(f"{path!r} must be the absolute path of {what}")
        return path

    @model_validator(mode="after")
    def _ports(self) -> RouterConfig:
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
        given = self.rebalance
        for name in ("refine_s", "replan_s"):
            if given is not None and getattr(given, name) and given.qoe is None:
                raise ValueError(
                    f"{name} finds bounds by `qoe`, D_0 to D_4 of a profile: give them, or leave "
                    "it 0"
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
    def policy_seed(self) -> int:
        """Of its policies. Centroids are fitted with `seed` itself: they are alike everywhere."""
        return seed_of(self.seed, self.number)

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
