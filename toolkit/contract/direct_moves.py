"""What keeps a decode worker's requests from going elsewhere with their KV, as its flags show it.

Judged by what SGLang made of the flags: the launcher says it before a start, and the worker itself
(`patches.move.manager`), which knows its memory pool as well. Checked against SGLang 0.5.21.
"""

from collections.abc import Mapping
from typing import Any

FIELDS = (
    "disaggregation_transfer_backend", "pp_size", "attn_cp_size", "dcp_size", "enable_hisparse",
    "disaggregation_decode_enable_offload_kvcache", "disaggregation_decode_enable_radix_cache",
    "disaggregation_enable_kv_checksum", "enable_pd_role_switch",
)  # fmt: skip
"""Of `patches.check_args`. An older release lacks some of them, and what they turn on."""


def obstacles(resolved: Mapping[str, Any]) -> list[str]:
    """Each reason, in words; empty where requests go."""

    def on(*fields: str) -> bool:
        return any(resolved.get(field) for field in fields)

    reasons = {
        "only Mooncake sends KV between decode workers": (
            resolved["disaggregation_transfer_backend"] != "mooncake"
        ),
        "pipeline or context parallelism": any(
            (resolved.get(field) or 1) > 1 for field in ("pp_size", "attn_cp_size", "dcp_size")
        ),
        "KV that is kept elsewhere, too": on(
            "enable_hisparse", "disaggregation_decode_enable_offload_kvcache"
        ),
        "a prefix cache on decode": on("disaggregation_decode_enable_radix_cache"),
        "checksums of KV": on("disaggregation_enable_kv_checksum"),
        "roles that change": on("enable_pd_role_switch"),
    }
    return [reason for reason, there in reasons.items() if there]
