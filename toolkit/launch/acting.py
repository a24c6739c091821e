"""Which keys of `router:` and `transfer:` can act under the file's `kind` and `mode`.

One that cannot is refused: who writes it believes that it does something, such as asking for a key.
"""

from __future__ import annotations

from collections.abc import Collection

OURS = ("toolkit",)
BOTH = ("toolkit", "sglang")
LIMITS = (
    "max_inflight", "max_queue", "parked_per_prefill", "park_timeout_s", "request_timeout_s",
    "silent_s", "hung_s", "lost_s", "first_token_timeout_s", "idle_timeout_s", "eject_share",
    "max_retries", "max_parts", "max_body_mib", "max_body_total_mib", "max_connections",
    "head_timeout_s", "keepalive_s", "body_timeout_s", "body_pace_kib", "accept_gzip",
)  # fmt: skip
"""Keys of `router:` that are those of `toolkit.router.config`, which says what they do."""
ROUTERS = dict.fromkeys(LIMITS, OURS) | {
    "host": BOTH,
    "port": BOTH,
    "node": BOTH,
    "api_key_env": BOTH,
    "max_inflight": BOTH,
    "max_queue": BOTH,
    "request_timeout_s": BOTH,
    "prefill_policy": BOTH,
    "decode_policy": BOTH,
    "tau": OURS,
    "refit_on_drift": OURS,
    "record": OURS,
    "seed": OURS,
    "api_keys_file": OURS,
    "admin_key_env": OURS,
    "admin_key_file": OURS,
    "admin_port": OURS,
    "allow": OURS,
    "args": ("sglang",),
}
"""Key of `router:` -> the kinds of router that know what to do with it. Not here: `profile`, which
workers use too, and `dispatch`, which `checks.routing` judges."""

APART = ("prefill_policy", "parked_per_prefill", "park_timeout_s")
"""Keys of `router:` for prefill workers apart from decode workers."""


def check_router_key(key: str, kind: str) -> None:
    """ValueError: this kind of router has no use for the key; it says which has."""
    kinds = ROUTERS.get(key, (kind,))
    if kind in kinds:
        return
    if key == "record":
        raise ValueError("only our router records: use kind: toolkit, or remove it")
    if key == "args":
        raise ValueError(f"flags of sglang_router: router: {kind} reads none: remove them")
    what = "there is no router" if kind == "none" else f"router: {kind} cannot do that"
    raise ValueError(f"{what}: use kind: {' or '.join(kinds)}, or remove it")


def check_mode(mode: str, kind: str, given: Collection[str]) -> None:
    """ValueError: workers that prefill and decode leave one of the `given` keys without effect."""
    if mode == "pd":
        return
    for key in APART:
        if key in given:
            raise ValueError(
                f"{key}: mode plain has no prefill workers apart: "
                + (
                    "remove it"
                    if key != "prefill_policy"
                    else "set decode_policy, which plain uses"
                )
            )
    if kind == "sglang" and "decode_policy" in given:
        raise ValueError("decode_policy: under mode plain it is a flag: args: {policy: NAME}")


def check_transfer(mode: str, given: Collection[str]) -> None:
    """ValueError: nothing is transferred."""
    if mode == "plain" and given:
        raise ValueError("mode plain moves no KV between workers: use mode: pd, or remove it")
