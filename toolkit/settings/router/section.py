"""Section `router` of a deployment file: which router, and its settings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ValidationInfo, field_validator, model_validator

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
    port: Port | None = key(None, "where it listens; default: a free port", BOTH)
    node: str | None = key(None, "name of the host it runs on; default: the first", BOTH)
    admin_port: Port | None = key(
        None, "loopback port for /admin/* where there is no admin key; default: a free port", OURS
    )


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
