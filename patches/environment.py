"""What a worker's process knows of itself: whether it is the toolkit's, on what it computes, with
which patches it runs and with which its fellows must."""

import os
from collections.abc import Mapping

from patches.base import Process
from toolkit.contract.variables import DEVICE_VARIABLE, PATCHES_VARIABLE

_installed: tuple[str, ...] = ()
_expected: Mapping[Process, frozenset[str]] = {}


def enabled() -> bool:
    """Whether the toolkit started this process (`TOOLKIT_PATCHES=1`)."""
    return os.environ.get(PATCHES_VARIABLE) == "1"


def on_cpu() -> bool:
    """Whether this worker computes on CPU (`TOOLKIT_DEVICE=cpu`)."""
    return os.environ.get(DEVICE_VARIABLE) == "cpu"


def release() -> str:
    """The installed SGLang's version, as its package says it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sglang")
    except PackageNotFoundError:
        return "of an unknown version"


def installed() -> tuple[str, ...]:
    """Names of the patches that this process runs with; empty before `patches.register`."""
    return _installed


def expected(process: Process) -> frozenset[str]:
    """Names of the patches that a process of this worker must run with; known once this one's
    patches are in."""
    return _expected[process]


def applied(names: tuple[str, ...], everywhere: Mapping[Process, frozenset[str]]) -> None:
    """`names` are in here now, `everywhere` says what each process of the worker must have."""
    global _installed, _expected
    _installed, _expected = names, everywhere
