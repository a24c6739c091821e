"""Which class a request has: what the operator says of its sender, else what it says itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from toolkit.contract.headers import CLASS
from toolkit.contract.request_class import RequestClass
from toolkit.router.errors import ApiError

LATENCY_SENSITIVE, STANDARD = RequestClass.LATENCY_SENSITIVE, RequestClass.STANDARD


class ByPriority(BaseModel):
    """What a number in SGLang's field `priority` means; greater goes first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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


class Classes(BaseModel):
    """Where the class of a request comes from; the first that says one:

    `keys`, by the name of the client's key; `users`, by the request's `user`; the header
    `x-toolkit-class`; OpenAI's `service_tier` (`flex` is best-effort, `priority`
    latency-sensitive); SGLang's `priority`, where `priority` says what its numbers mean; `default`.

    `claim`: whose word that a request is latency-sensitive is taken (names of client keys, or
    `all`); of others it is standard. What `keys` says needs no claim: it is the operator's word.
    What a request's `user` is, is the client's. Anybody may say that a request is best-effort.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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

    def of(self, body: dict[str, Any], header: str | None, key: str) -> RequestClass:
        """Of a request with this body, this header (None: without one), and this key's name.

        ApiError: 400, the header names no class.
        """
        if key and key in self.keys:
            return self.keys[key]
        said = self._said(body, header)
        if said is None:
            return self.default
        if said is LATENCY_SENSITIVE and self.claim != "all" and key not in self.claim:
            return STANDARD
        return said

    def _said(self, body: dict[str, Any], header: str | None) -> RequestClass | None:
        """By the request itself; values that nothing here knows say nothing."""
        user, tier, number = (body.get(name) for name in ("user", "service_tier", "priority"))
        if isinstance(user, str) and user in self.users:
            return self.users[user]
        if header is not None:
            try:
                return RequestClass(header)
            except ValueError:
                known = ", ".join(RequestClass)
                raise ApiError(400, f"{CLASS}: {header[:40]!r} is none of {known}") from None
        if isinstance(tier, str) and tier in self.service_tier:
            return self.service_tier[tier]
        if self.priority is None or type(number) is not int:
            return None
        if number >= self.priority.latency_sensitive:
            return LATENCY_SENSITIVE
        return RequestClass.BEST_EFFORT if number <= self.priority.best_effort else STANDARD
