"""`classes`: how latency-sensitive and best-effort requests are told apart."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from toolkit.contract.request_class import RequestClass
from toolkit.settings.section import Section

LATENCY_SENSITIVE, STANDARD = RequestClass.LATENCY_SENSITIVE, RequestClass.STANDARD


class ByPriority(Section):
    """What a number in SGLang's field `priority` means; greater goes first."""

    latency_sensitive: int = Field(description="this or more")
    best_effort: int = Field(description="this or less")

    @model_validator(mode="after")
    def _apart(self) -> ByPriority:
        if self.best_effort >= self.latency_sensitive:
            raise ValueError(
                f"best_effort ({self.best_effort}) must be less than latency_sensitive "
                f"({self.latency_sensitive})"
            )
        return self


class Classes(Section):
    """Where the class of a request comes from; the first that says one:

    `keys`, by the name of the client's key; `users`, by the request's `user`; the header
    `x-toolkit-class`; OpenAI's `service_tier` (`flex` is best-effort, `priority`
    latency-sensitive); SGLang's `priority`, where `priority` says what its numbers mean; `default`.

    `claim`: whose word that a request is latency-sensitive is taken (names of client keys, or
    `all`); of others it is standard. What `keys` says needs no claim: it is the operator's word.
    What a request's `user` is, is the client's. Anybody may say that a request is best-effort.
    """

    default: RequestClass = Field(default=STANDARD, description="of a request that says nothing")
    keys: dict[str, RequestClass] = Field(
        default_factory=dict, description="by the name of the client's key"
    )
    users: dict[str, RequestClass] = Field(
        default_factory=dict, description="by the request's `user`"
    )
    service_tier: dict[str, RequestClass] = Field(
        default={"priority": LATENCY_SENSITIVE, "flex": RequestClass.BEST_EFFORT},
        description="by OpenAI's `service_tier`",
    )
    priority: ByPriority | None = Field(
        default=None, description="by the number in SGLang's `priority`"
    )
    claim: Literal["all"] | tuple[str, ...] = Field(
        default="all",
        description="names of the client keys whose word is taken that a request is "
        "latency-sensitive",
    )

    @property
    def named(self) -> frozenset[str]:
        """The client keys that it names."""
        claim = () if self.claim == "all" else self.claim
        return frozenset(self.keys) | frozenset(claim)
