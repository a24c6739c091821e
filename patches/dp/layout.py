"""How many DP ranks a server has, and whether they take their steps together.

Up to SGLang 0.5.21 `dp_size` counts the ranks of either kind, and `enable_dp_attention` says which
kind they are. From 0.5.22 on `dp_size` counts copies of the model and `attn_dp_size` DP-attention
ranks; the flag `--enable-dp-attention` is still taken and stays false in what SGLang makes of it.
"""

from __future__ import annotations

from typing import Any


def ranks(config: Any) -> int:
    """DP ranks by resolved flags (`resolving_view`) or by `get_parallel()`."""
    from sglang.srt import runtime_context

    counted = getattr(runtime_context, "num_dp_ranks_of", None)
    return int(config.dp_size if counted is None else counted(config))


def together(config: Any) -> bool:
    """Whether they are DP-attention ranks, which share their experts and wait for each other."""
    from sglang.srt import runtime_context

    enabled = getattr(runtime_context, "attn_dp_enabled_of", None)
    return bool(config.enable_dp_attention if enabled is None else enabled(config))
