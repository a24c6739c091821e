"""Which keys of a deployment file can act under its `kind`, `mode`, `dispatch` and `device`.

One that cannot is refused: who writes it believes that it does something, such as asking for a key.
Only what the file itself sets is looked at: a default never offends, nor does a key without value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from toolkit.policies.rounds.pooling import bare, is_pooled, no_pool
from toolkit.router.validate.limits import MEDIA, NO_MEDIA

OURS = ("toolkit",)
SGLANGS = ("sglang",)
BOTH = ("toolkit", "sglang")
EVERY = ("toolkit", "sglang", "none")
POLICIES = ("prefill_policy", "decode_policy")
SGLANG_DECODE = ("random", "round_robin", "cache_aware", "power_of_two", "manual")
SGLANG_POLICIES = {"prefill_policy": (*SGLANG_DECODE, "bucket"), "decode_policy": SGLANG_DECODE}
"""What sglang_router 0.3.2 takes; a test compares."""
LIMITS = (
    "max_inflight", "max_queue", "parked_per_prefill", "park_timeout_s", "request_timeout_s",
    "silent_s", "hung_s", "lost_s", "first_token_timeout_s", "idle_timeout_s", "eject_share",
    "max_retries", "max_parts", "max_body_mib", "max_body_total_mib", "max_connections",
    "head_timeout_s", "keepalive_s", "body_timeout_s", "body_pace_kib", "accept_gzip",
    "parse_cpu_ms", "write_stall_s",
)  # fmt: skip
"""Keys of `router:` that are those of `toolkit.router.config`, which says what they do."""


class Rule(NamedTuple):
    """When a key of `router:` acts, and what to do where it does not.

    `kinds`: the routers that know what to do with it; `other`: what to say of another one, where
    that is more than to use one of these. `plain`: what to do in mode plain; empty where it acts
    there too. `late`: it acts only with `dispatch: late`."""

    kinds: tuple[str, ...]
    other: str = ""
    plain: str = ""
    late: bool = False


PD = "use mode: pd, or remove it"
PARKS = Rule(OURS, plain=PD, late=True)
EXPERTS = Rule(OURS, plain=PD)
ROUTER = dict.fromkeys(LIMITS, Rule(OURS)) | {
    "kind": Rule(EVERY),
    "host": Rule(BOTH),
    "port": Rule(BOTH),
    "node": Rule(BOTH),
    "open": Rule(BOTH),
    # Its values are judged, not the key: `checks.possible.routing`.
    "dispatch": Rule(EVERY),
    # Prefill workers record by it and DP controllers choose by it, whatever router there is.
    "profile": Rule(EVERY),
    "api_key_env": Rule(BOTH),
    "classes": Rule(OURS),
    "cors": Rule(OURS, "only our router answers web pages: use kind: toolkit, or remove it"),
    "rebalance": Rule(OURS, plain=PD),
    "moves": Rule(OURS, plain="plain workers move requests by replay alone: remove it"),
    "max_inflight": Rule(BOTH),
    "max_queue": Rule(BOTH),
    "request_timeout_s": Rule(BOTH),
    "prefill_policy": Rule(BOTH, plain="set decode_policy, which plain uses"),
    "decode_policy": Rule(BOTH),
    "first_token": Rule(OURS, plain=PD, late=True),
    "parked_per_prefill": PARKS,
    "park_timeout_s": PARKS,
    # Whether there is a profile is asked before a launch: a simulation needs none.
    "tau": EXPERTS,
    "refit_on_drift": EXPERTS,
    "record": Rule(OURS, "only our router records: use kind: toolkit, or remove it"),
    "seed": Rule(OURS),
    "api_keys_file": Rule(OURS),
    "admin_key_env": Rule(OURS),
    "admin_key_file": Rule(OURS),
    "admin_port": Rule(OURS),
    "allow": Rule(OURS),
    "args": Rule(SGLANGS, "only SGLang's router has flags: use kind: sglang, or remove them"),
}
"""Every key of `router:`; a test fails for one that is not here."""

DEVICE = {
    "background": ("cpu", "only CPU workers share cores: remove it"),
    "gpus": ("cuda", "device cpu has no GPUs: set device: cuda, or remove it"),
}
"""Key of a role -> the only device where it acts, and what to say on the other."""


def router_problem(key: str, kind: str, dispatch: str | None) -> str:
    """Why this kind of router has no use for the key; empty where it has. `dispatch`: as the file
    says."""
    rule = ROUTER.get(key, Rule(EVERY))
    if kind not in rule.kinds:
        what = "there is no router" if kind == "none" else f"router: {kind} cannot do that"
        return rule.other or f"{what}: use kind: {' or '.join(rule.kinds)}, or remove it"
    if rule.late and dispatch == "concurrent":
        what = "has no prefill apart" if key == "first_token" else "parks no prefill"
        return f"dispatch: concurrent {what}: use dispatch: late, or remove it"
    return ""


def policy_problem(key: str, name: str) -> str:
    """Why SGLang's router has no such policy; empty: it has."""
    known = SGLANG_POLICIES[key]
    if name in known:
        return ""
    return f"router: sglang cannot do {name}: use kind: toolkit, or one of {', '.join(known)}"


def plain_problem(key: str, kind: str) -> str:
    """Why workers that do both prefill and decode leave the key without effect; empty: they do
    not."""
    if kind == "sglang" and key in POLICIES:
        return "mode plain has one policy, a flag: set router.args: {policy: NAME} instead"
    repair = ROUTER.get(key, Rule(EVERY)).plain
    return repair and f"mode plain has no prefill workers apart: {repair}"


def media_problem(allow: Iterable[str], pd: bool) -> str:
    """What to do about media where prefill and decode are apart; empty where there are none."""
    return NO_MEDIA if pd and not MEDIA.isdisjoint(allow) else ""


def pool_problem(policy: str | None, pd: bool, dispatch: str | None) -> str:
    """Why a decode policy that asks for the pool of finished prefills gets none; empty: it does."""
    if policy is None or not is_pooled(policy):
        return ""
    why = no_pool(pd, dispatch or "late")
    return why and f"{policy}: {why}, or write {bare(policy)}"


def transfer_problem(key: str, mode: str, device: str, backend: str) -> str:
    """Why the key of `transfer:` moves nothing; empty: it does."""
    if mode == "plain":
        return "mode plain moves no KV between workers: use mode: pd, or remove it"
    tcp = backend == "mooncake_tcp" or (backend == "auto" and device == "cpu")
    if key == "ib_device" and tcp:
        return "mooncake_tcp uses no RDMA: set backend: mooncake (device: cuda), or remove it"
    return ""


def role_problem(key: str, role: str, device: str) -> str:
    """Why the key does nothing for workers of this role on this device; empty: it does."""
    if key == "bootstrap_port" and role == "worker":
        return "only prefill and decode workers have one: remove it"
    if key == "expert_placement" and role != "decode":
        return "ELDR chooses decode workers: set it there, or remove it"
    where, why = DEVICE.get(key, (device, ""))
    return "" if where == device else why


def wrong_role(role: str, mode: str) -> str:
    """Why a mode starts no workers of a role; empty: it does."""
    if (role == "worker") == (mode == "plain"):
        return ""
    fit = "prefill and decode" if mode == "pd" else "worker"
    return f"mode {mode} has no {role!r} workers: describe {fit}"


def conditions(path: str) -> str:
    """Where the key acts, for the page of keys (`router.tau`, `ROLE.gpus`); empty: everywhere that
    its section is used."""
    section, _, key = path.rpartition(".")
    found: list[str] = []
    if section == "router":
        rule = ROUTER[key]
        found += [f"kind: {kind}" for kind in rule.kinds if len(rule.kinds) == 1]
        found += ["mode: pd"] * bool(rule.plain) + ["dispatch: late"] * rule.late
    if section == "ROLE" and key in DEVICE:
        found.append(f"device: {DEVICE[key][0]}")
    if section == "transfer":
        found.append("mode: pd")
    return f"only with {', '.join(f'`{each}`' for each in found)}" if found else ""


def given(section: Any, also_false: bool = True) -> list[str]:
    """The keys to which a section of the file gives a value. Without `also_false` not those that
    say no to what happens only when asked for."""
    values = {key: getattr(section, key) for key in section.model_fields_set}
    if not also_false:
        return [key for key, value in values.items() if value]
    return [key for key, value in values.items() if value is not None and value != {}]


def refuse(found: Mapping[str, str]) -> None:
    """`found`: why, by key; the empty ones are good. ValidationError, for a validator to raise:
    every other one, each at the place of its own key."""
    errors = [
        InitErrorDetails(
            type=PydanticCustomError("cannot_act", "{why}", {"why": why}), loc=(key,), input=None
        )
        for key, why in found.items()
        if why
    ]
    if errors:
        raise ValidationError.from_exception_data("keys that cannot act", errors)


def without_other_device(data: dict[str, Any], device: str, roles: Collection[str]) -> None:
    """Take what could not act on `device` out of a file (as plain data) that was written for the
    other one: a deployment serves both."""
    for role in roles:
        for key, (where, _) in DEVICE.items():
            if where != device:
                data.get(role, {}).pop(key, None)
    transfer = data.get("transfer", {})
    if device == "cpu" and transfer.get("backend", "auto") == "auto":
        transfer.pop("ib_device", None)
