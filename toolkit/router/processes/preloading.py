"""What the processes of a router import, all of it at once: before they are forked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.settings.router.config import RouterConfig


def everything(config: RouterConfig) -> None:
    """Also what this configuration alone needs."""
    import uvloop  # noqa: F401

    from toolkit.policies import make_policy
    from toolkit.router.processes import decider_process, relay_process  # noqa: F401

    for side, name in (("prefill", config.prefill_policy), ("decode", config.decode_policy)):
        make_policy(name, config.seed, side, config.tau)
    if config.profile is not None:
        import toolkit.router.eldr.locality  # noqa: F401
