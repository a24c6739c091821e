"""Everything that touches SGLang's insides: one file a patch, put in by SGLang's own plugin loader.

`register` is this project's entry point in the group `sglang.srt.plugins`. SGLang calls it in
the main process and in every scheduler of every server on a machine where the toolkit is
installed, so it does nothing unless the environment says that the toolkit started this one.
"""

from __future__ import annotations

import os

from toolkit.contract.variables import DEVICE_VARIABLE, PATCHES_VARIABLE

_installed: tuple[str, ...] = ()


def enabled() -> bool:
    """Whether the toolkit started this process (`TOOLKIT_PATCHES=1`)."""
    return os.environ.get(PATCHES_VARIABLE) == "1"


def on_cpu() -> bool:
    """Whether this worker computes on CPU (`TOOLKIT_DEVICE=cpu`)."""
    return os.environ.get(DEVICE_VARIABLE) == "cpu"


def installed() -> tuple[str, ...]:
    """Names of the patches that this process runs with; empty before `register`."""
    return _installed


def register() -> None:
    """Entry point of the SGLang plugin: apply what this process needs, or end the process."""
    global _installed
    if not enabled() or _installed:
        return
    from patches import base
    from patches.registry import patches_for

    chosen = patches_for(base.current_process(), on_cpu=on_cpu())
    try:
        base.install(chosen)
    except base.PatchError as error:
        base.refuse(str(error))
    except Exception as error:
        # SGLang's loader would log this and start without the patches.
        base.refuse(f"applying the patches failed: {type(error).__name__}: {error}")
    _installed = tuple(patch.name for patch in chosen)
