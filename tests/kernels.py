"""Which kernels OpenBLAS took, and how thoroughly properties are tried under other ones."""

import ctypes
import os
from pathlib import Path

from toolkit.setup.kernels import ASKED
from toolkit.setup.scopes import FAST, FULL, SCOPE

_SYMBOLS = (
    "scipy_openblas_get_corename64_",
    "scipy_openblas_get_corename",
    "openblas_get_corename64_",
    "openblas_get_corename",
)
CHANGE, WHOLE = 25, 200
"""Examples of a property in the tests of a change, and in those of `--full`."""
USUAL = 100
"""Of which a test says its own number: one that says 50 gets half of the examples of others."""
LEAST = 4


def examples(count: int) -> int:
    """Of a property that says `count`, in this run.

    A change runs a quarter, at most 25 examples; `--full` runs twice as many, so 200 for most. A
    fast run and one under other kernels run a fifth: another run has tried the rest.
    """
    scope = os.environ.get(SCOPE)
    if ASKED in os.environ or scope == FAST:
        return min(CHANGE, max(LEAST, count // 5))
    if scope == FULL:
        return count * WHOLE // USUAL
    return min(CHANGE, max(LEAST, count * CHANGE // USUAL))


def taken() -> dict[str, str]:
    """File name of each OpenBLAS in this process (numpy's, scipy's) -> the kernels that it took."""
    import numpy  # noqa: F401
    import scipy.linalg  # noqa: F401

    lines = Path("/proc/self/maps").read_text().splitlines()
    files = {line.split()[-1] for line in lines if "openblas" in line}
    found = {}
    for file in sorted(files):
        library = ctypes.CDLL(file)
        for symbol in _SYMBOLS:
            ask = getattr(library, symbol, None)
            if ask is not None:
                ask.restype = ctypes.c_char_p
                found[Path(file).name] = ask().decode()
                break
    return found


def wrong(asked: str, found: dict[str, str]) -> str:
    """What is not as asked for ("Haswell", or names with "|" between), in words; or nothing."""
    if not found:
        return f"kernels {asked} were asked for, but there is no OpenBLAS in this process to ask"
    others = {file: name for file, name in found.items() if name not in asked.split("|")}
    return f"kernels {asked} were asked for, OpenBLAS took others: {others}" if others else ""
