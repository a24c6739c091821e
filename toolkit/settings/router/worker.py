"""A worker as the router's file names it."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import Field, field_validator, model_validator

from toolkit.contract.addresses import LAST_PORT, Place, check_host, http_url, read_worker_url
from toolkit.settings.section import Section

Role = Literal["prefill", "decode", "plain"]


class WorkerConfig(Section):
    """One SGLang server: `url` for HTTP, `bootstrap_*` for its KV bootstrap server. `dp_attention`:
    its DP ranks share their experts; what the worker says of itself when it is up counts more.
    `same_run`: this router's own launcher starts it (`toolkit.router.identity`). `preempts`: it
    stops best-effort prefills between layers for latency-sensitive requests, or pauses answers."""

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
