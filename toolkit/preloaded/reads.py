"""Which environment variables were read while modules were imported.

A module that reads a variable at import keeps what it found, so a forked process has it from the
preloaded one. A process for which such a variable differs cannot be forked. The list is taken
down, not written by hand: it follows the installed releases.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# What C libraries read as they are loaded cannot be seen from Python.
UNSEEN = (
    "ATEN_", "BLIS_", "CUDA_", "DNNL_", "GLIBC_", "GOMP_", "GRPC_", "KMP_", "LANG", "LC_", "LD_",
    "MALLOC_", "MKL_", "NUMEXPR_", "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "OPENSSL_", "PYTHON",
    "PYTORCH_", "RUST_", "TORCH_", "TZ",
)  # fmt: skip
"""Beginnings of their names: these variables count as read."""

PRESENCE = frozenset({"PYTEST_CURRENT_TEST"})
"""Whoever reads one of these asks whether it is there. pytest sets it anew for each test."""


class _Recording(os._Environ):  # type: ignore[type-arg]
    seen: set[str]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            self.seen.add(key)
        return super().__getitem__(key)


class Reads:
    """The environment before and after the imports, and what was read of it meanwhile."""

    def __init__(self) -> None:
        self.before = dict(os.environ)
        self.after: dict[str, str] = {}
        self.seen: set[str] = set()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Take down the reads of this process while the block runs."""
        environ: Any = os.environ
        plain = environ.__class__
        environ.__class__ = _Recording
        environ.seen = self.seen
        try:
            yield
        finally:
            environ.__class__ = plain
            del environ.seen
            self.after = dict(os.environ)

    def different(self, environment: Mapping[str, str]) -> list[str]:
        """Variables that were read and that are not the same in `environment`."""
        names = self.seen | {
            name for name in (*environment, *self.before) if name.startswith(UNSEEN)
        }
        return sorted(
            name
            for name in names
            if environment.get(name) != self.before.get(name)
            and not (name in PRESENCE and name in environment and name in self.before)
        )

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """`environment` after the same imports, with what they set and removed."""
        changed = {k: v for k, v in self.after.items() if self.before.get(k) != v}
        removed = self.before.keys() - self.after.keys()
        return {k: v for k, v in {**environment, **changed}.items() if k not in removed}
