"""Section `router` of a deployment file: which router, and its settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from toolkit.contract.addresses import LAST_PORT, is_unspecified
from toolkit.loopback import is_loopback, open_port
from toolkit.policies import check_policy
from toolkit.settings.router.access import Access
from toolkit.settings.router.bounds import Bodies, Waits
from toolkit.settings.router.choosing import Choosing
from toolkit.settings.rules import BOTH, EVERY, OURS, KeyRule, rules_of
from toolkit.settings.section import Port, Section, key

SGLANG_DECODE = ("random", "round_robin", "cache_aware", "power_of_two", "manual")
SGLANG_POLICIES = {"prefill_policy": (*SGLANG_DECODE, "bucket"), "decode_policy": SGLANG_DECODE}
"""What sglang_router 0.3.2 takes; a test compares."""


class RouterKind(Section):
    """Which router, and where."""

    kind: Literal["toolkit", "sglang", "none"] = key(
        "toolkit",
        "`toolkit`: our router; `sglang`: SGLang's own, without late decisions; `none`",
        EVERY,
    )
    port: Port | None = key(
        None,
        "where it listens; of several on one host the first one's, the others follow; default: a "
        "free port",
        BOTH,
    )
    node: str | tuple[str, ...] | None = key(
        None,
        "name of the host it runs on, or a list: one router on each; default: the first",
        BOTH,
    )
    routers: Annotated[int, Field(ge=1, le=64)] | None = key(
        None,
        "so many over the same workers, on the hosts of `node` in turn, each with ports and files "
        "of its own (`router-0`, `router-1`, ..); default: one on each",
        OURS,
    )
    admin_port: Port | None = key(
        None,
        "loopback port for /admin/* where there is no admin key (of several as `port`); default: a "
        "free port",
        OURS,
    )

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the hosts on which they run; empty: the deployment's first."""
        if self.node is None:
            return ()
        return (self.node,) if isinstance(self.node, str) else self.node

    @property
    def count(self) -> int:
        """How many there are, where there is any."""
        return self.routers or len(self.nodes) or 1

    @property
    def on_a_host(self) -> int:
        """The most that one host has: they take so many ports from `port` on."""
        return -(-self.count // (len(self.nodes) or 1))

    @field_validator("node")
    @classmethod
    def _each_host_once(cls, node: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        if not isinstance(node, tuple):
            return node
        if not node:
            raise ValueError("names no host: name one, or leave it out")
        if twice := [name for name in dict.fromkeys(node) if node.count(name) > 1]:
            raise ValueError(f"names {twice[0]} twice: say it once, and how many with `routers`")
        return node


# pydantic takes the fields of the last base first: a key is judged by `kind` and `dispatch`.
class Router(Bodies, Waits, Choosing, Access, RouterKind):
    """The public port. `says` tells a key that the file sets from a default: `dispatch`, and times
    that depend on the device (`toolkit.settings.devices`), are others where it is silent."""

    args: dict[str, Any] = key(
        {},
        "more sglang_router flags",
        KeyRule(("sglang",), "only SGLang's router has flags: use kind: sglang, or remove them"),
    )
    NEVER_EMPTY = frozenset({"kind", "host", "seed", "open", "allow", "args"})

    @model_validator(mode="after")
    def _has_keys(self) -> Router:
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

    @model_validator(mode="after")
    def _several_fit(self) -> Router:
        """Each has a place and a port."""
        nodes, count = self.nodes, self.count
        if count < len(nodes):
            what = f"routers: {count} cannot run on the {len(nodes)} hosts of node"
            raise ValueError(f"{what}: name fewer, or leave routers out (one on each)")
        if count > 1 and self.kind == "sglang":
            raise ValueError("node: SGLang's routers know nothing of each other: name one host")
        if len(nodes) > 1 and not (is_unspecified(self.host) or is_loopback(self.host)):
            what = f"host {self.host} is the address of one machine, and they run on {len(nodes)}"
            repair = "say 0.0.0.0 (or ::), or 127.0.0.1 where something on each is in front of it"
            raise ValueError(f"{what} ({', '.join(nodes)}): {repair}")
        for name in ("port", "admin_port"):
            first = getattr(self, name)
            if first and first + self.on_a_host - 1 > LAST_PORT:
                raise ValueError(
                    f"{name} {first}: {self.on_a_host} on a host do not fit below {LAST_PORT + 1}"
                )
        return self

    @field_validator("*")
    @classmethod
    def _can_act(cls, value: Any, info: ValidationInfo) -> Any:
        kind = info.data.get("kind")
        if kind is not None and value is not None and value != {}:
            rule = rules_of(cls, KeyRule)[str(info.field_name)]
            if why := wrong_router(str(info.field_name), rule, kind, info.data.get("dispatch")):
                raise ValueError(why)
        return value

    @field_validator("prefill_policy", "decode_policy")
    @classmethod
    def _known_policy(cls, name: str, info: ValidationInfo) -> str:
        kind, of = info.data.get("kind"), str(info.field_name)
        if kind == "toolkit":
            check_policy(name, of.removesuffix("_policy"))
        elif kind is not None and name not in SGLANG_POLICIES[of]:
            known = ", ".join(SGLANG_POLICIES[of])
            raise ValueError(
                f"router: sglang cannot do {name}: use kind: toolkit, or one of {known}"
            )
        return name


def wrong_router(name: str, rule: KeyRule, kind: str, dispatch: str | None) -> str:
    """Why this kind of router has no use for the key; empty where it has. `dispatch`: as the file
    says."""
    if kind not in rule.kinds:
        what = "there is no router" if kind == "none" else f"router: {kind} cannot do that"
        return rule.other or f"{what}: use kind: {' or '.join(rule.kinds)}, or remove it"
    if rule.late and dispatch == "concurrent":
        what = "has no prefill apart" if name == "first_token" else "parks no prefill"
        return f"dispatch: concurrent {what}: use dispatch: late, or remove it"
    return ""
