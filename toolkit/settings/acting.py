"""Which keys of a deployment file can act under its `kind`, `mode`, `dispatch` and `device`.

One that cannot is refused: who writes it believes that it does something, such as asking for a key.
Only what the file itself sets is looked at: a default never offends, nor does a key without value.
Where a key acts is said where it is declared (`toolkit.settings.rules`).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from toolkit.policies.rounds.pooling import bare, is_pooled, no_pool
from toolkit.settings.role import Role
from toolkit.settings.router.permissions import MEDIA, NO_MEDIA
from toolkit.settings.router.section import SGLANG_POLICIES, Router
from toolkit.settings.rules import Device, KeyRule, rules_of
from toolkit.settings.section import Section

ROUTER = rules_of(Router, KeyRule)
"""Every key of `router:`; a test fails for one that is not here."""
DEVICE = rules_of(Role, Device)
"""The keys of a role that act on one device only."""


def plain_problem(key: str, kind: str) -> str:
    """Why workers that do both prefill and decode leave the key without effect; empty: they do
    not."""
    if kind == "sglang" and key in SGLANG_POLICIES:
        return "mode plain has one policy, a flag: set router.args: {policy: NAME} instead"
    repair = ROUTER[key].plain
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


def share_problem(router: Router) -> str:
    """Why so many routers of late dispatch have nothing to park; empty: each has a part."""
    count, parked = router.count, router.parked_per_prefill
    if router.dispatch != "late" or count <= parked:
        return ""
    what = f"{count} cannot share parked_per_prefill {parked}, of which each needs one at least"
    return f"{what}: raise it, or have fewer"


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
    if key == "early_choice" and role != "prefill":
        return "prefill workers ask for decode workers: set it there, or remove it"
    if key == "expert_placement" and role != "decode":
        return "ELDR chooses decode workers: set it there, or remove it"
    rule = DEVICE.get(key)
    return rule.why if rule is not None and rule.name != device else ""


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
        found.append(f"device: {DEVICE[key].name}")
    if section == "transfer":
        found.append("mode: pd")
    return f"only with {', '.join(f'`{each}`' for each in found)}" if found else ""


def given(section: Section, also_false: bool = True) -> list[str]:
    """The keys to which a section of the file gives a value. Without `also_false` not those that
    say no to what happens only when asked for."""
    if not also_false:
        return [key for key, value in section.said.items() if value]
    return [key for key, value in section.said.items() if value is not None and value != {}]


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
        for key, rule in DEVICE.items():
            if rule.name != device:
                data.get(role, {}).pop(key, None)
    transfer = data.get("transfer", {})
    if device == "cpu" and transfer.get("backend", "auto") == "auto":
        transfer.pop("ib_device", None)
