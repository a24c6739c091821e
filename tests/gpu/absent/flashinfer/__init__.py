"""Stands in for FlashInfer where it has not travelled.

SGLang 0.5.17 imports names of it on every GPU, whatever `SGLANG_IS_FLASHINFER_AVAILABLE` says
(`layers/quantization/fp8_utils.py:186`, `layers/sampler.py:31`). Any name is found; whoever calls
one is told. `flashinfer.norm` is not found: sgl_kernel then takes its own kernels.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Absent:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"FlashInfer is not here: {self._name}")


class _Module(ModuleType):
    def __getattr__(self, name: str) -> _Absent:
        return _named(self.__name__, name)


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith("flashinfer.") or name == "flashinfer.norm":
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


def _named(module: str, name: str) -> _Absent:
    if name.startswith("__") or name == "norm":
        raise AttributeError(name)
    return _Absent(f"{module}.{name}")


def __getattr__(name: str) -> _Absent:
    return _named("flashinfer", name)


sys.meta_path.append(_Finder())
