"""How many DP ranks a server has, and whether they take their steps together.

Up to SGLang 0.5.21 `dp_size` counts the ranks of either kind, and `enable_dp_attention` says which
kind they are. From 0.5.22 on `dp_size` counts copies of the model and `attn_dp_size` DP-attention
ranks; the flag `--enable-dp-attention` is still taken and stays false in what SGLang makes of it.
"""

from patches.flags import resolved_view
from patches.sglang_types import ServerArgs


def ranks(config: object) -> int:
    """DP ranks by resolved flags (`patches.flags`) or by `get_parallel()`."""
    return _asked(config, "num_dp_ranks", "dp_size")


def of_server(server_args: ServerArgs) -> int:
    """DP ranks of a server with these flags."""
    return ranks(resolved_view(server_args))


def together(config: object) -> bool:
    """Whether they are DP-attention ranks, which share their experts and wait for each other."""
    return bool(_asked(config, "attn_dp_enabled", "enable_dp_attention"))


def rank(scheduler: object) -> int:
    """The DP rank that a scheduler is, 0 of a server that has one: SGLang 0.5.20 tells the
    scheduler, later releases `get_parallel()`."""
    from sglang.srt.runtime_context import get_parallel

    told = getattr(scheduler, "ps", None) or get_parallel()
    return int(told.dp_rank or 0)


def _asked(config: object, name: str, older: str) -> int:
    """`get_parallel()` has the newer name; resolved flags are counted by a function named alike."""
    from sglang.srt import runtime_context

    counted = getattr(runtime_context, f"{name}_of", None)
    if counted is None:
        return int(getattr(config, older))
    known = getattr(config, name, None)
    return int(counted(config) if known is None else known)
