"""The deployment file: what a user writes. Strict: an unknown key is an error.

Everything has a default but `name`; `toolkit.launch.resolve` turns it into exact commands. The
same file serves `device: cpu` and `device: cuda`: nothing in it is tied to the device unless put
into `args`.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from toolkit.contract.addresses import check_host
from toolkit.loopback import is_loopback
from toolkit.settings import acting
from toolkit.settings.dp_policy import check_roles
from toolkit.settings.model import Model
from toolkit.settings.processes import LogFiles, Restart, Timeouts
from toolkit.settings.role import Role
from toolkit.settings.router.section import Router
from toolkit.settings.section import Count, Port, Section, Short, key
from toolkit.settings.speculative import Speculative
from toolkit.settings.transfer import SENDING, Transfer

ROLES = ("prefill", "decode", "worker")


class Host(Section):
    """A machine of a deployment on several."""

    address: Annotated[str, AfterValidator(check_host)] = Field(
        description="address by which the other hosts reach it"
    )
    gpus: Count | None = key(None, "how many GPUs it has; default: counted, or 8")


def _is_ipv4(host: str) -> bool:
    try:
        return ip_address(host).version == 4
    except ValueError:
        return False


class Deployment(Section):
    """A whole deployment file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        description="names the run and its folder; the only required key"
    )
    device: Literal["cpu", "cuda"] = key("cpu", "where workers run; the same file serves both")
    mode: Literal["pd", "plain"] = key(
        "pd", "`pd`: prefill and decode workers; `plain`: each worker does both"
    )
    model: Annotated[Model, Short("path")] = key(
        Model(), "which weights; a text is short for `model.path`"
    )
    prefill: Role = key(Role(), "the workers that run prompts (`mode: pd`)")
    decode: Role = key(Role(), "the workers that generate tokens (`mode: pd`)")
    worker: Role = key(Role(), "the workers that do both (`mode: plain`)")
    capture_experts: bool = key(
        False, "workers keep the experts of every token (profile, signatures)"
    )
    speculative: Annotated[Speculative | None, Short("draft")] = key(
        None, "a draft proposes tokens; a text is short for `speculative.draft`"
    )
    transfer: Transfer = key(Transfer(), "how KV moves from prefill to decode workers")
    router: Annotated[Router, Short("kind")] = key(
        Router(), "the public port; a text is short for `router.kind`"
    )
    hosts: dict[str, Host] = key({}, "the machines of a deployment on several hosts, by name")
    base_port: Port = key(30000, "first port on every host, several hosts only")
    worker_key_env: str | None = key(
        None, "name of the variable with the workers' key, on every host"
    )
    worker_key_file: str | None = key(None, "file that holds it (mode 600)")
    insecure: bool = key(
        False,
        "the run's keys may go by plain HTTP to other hosts; for a network that nobody else is on",
    )
    env: dict[str, str] = key({}, "environment of all processes")
    timeouts: Timeouts = key(Timeouts(), "how long each stage may take")
    restart: Restart = key(Restart(), "how a process that died is started again")
    logs: LogFiles = key(LogFiles(), "one log for each process, readable by its owner only")
    isolate: bool = key(False, "a network namespace of its own, but for the public port (Linux)")
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

    @field_validator("speculative")
    @classmethod
    def _trees_are_of_plain_workers(
        cls, speculative: Speculative | None, info: ValidationInfo
    ) -> Speculative | None:
        if speculative is not None and speculative.topk > 1 and info.data.get("mode") != "plain":
            raise ValueError("topk: a tree was not tried with KV that moves: 1, or mode: plain")
        return speculative

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
        acting.refuse({"routers": acting.share_problem(router) if pd else ""})
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
    def _late_dispatch_chooses_early(self) -> Deployment:
        prefill, router = self.prefill, self.router
        asked = prefill.says("early_choice") and prefill.early_choice is not None
        if asked and (router.kind != "toolkit" or router.dispatch != "late"):
            raise ValueError(
                "prefill.early_choice: only our router with dispatch: late chooses decode workers "
                "after the prefill has begun: remove it"
            )
        return self

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
    def _experts_stay_where_a_draft_is(self) -> Deployment:
        if self.speculative is None:
            return self
        for name, role in self.roles.items():
            if role.relocate or role.expert_placement:
                raise ValueError(
                    f"speculative: {name} has relocate or expert_placement, and placed experts "
                    "were not tried with a draft: leave out one of the two"
                )
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
        check_roles(self.roles, self.router.kind, self.router.profile is not None)
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
