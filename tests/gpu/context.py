"""What a step runs on, and its deployments: alike on both devices but for flags."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.together import waiting_turn
from toolkit.launch.running import Running

GPU_ARGS = {"attention-backend": "triton", "sampling-backend": "pytorch"}
"""What the parcels have kernels for: neither FlashInfer nor FlashAttention travels."""


@dataclass(frozen=True)
class Context:
    """`tiny`: sizes with which the step takes seconds on two CPU cores, and its figures mean
    nothing. `scratch` is shared by the steps of a run."""

    device: str
    tiny: bool
    scratch: Path

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    def size(self, real: int, tiny: int) -> int:
        return tiny if self.tiny else real

    def folder(self, name: str) -> Path:
        path = self.scratch / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def role(self, kv_tokens: int, max_running: int, **more: Any) -> dict[str, Any]:
        """Of a deployment file. On one GPU all workers share it, so that each takes what its KV
        needs and no share of what is free."""
        args = dict(more.pop("args", {}))
        found = {"kv_tokens": kv_tokens, "max_running": max_running, **more}
        if not self.on_cpu:
            found["gpus"] = [0]
            args = {**GPU_ARGS, **args}
        if args:
            found["args"] = args
        return found

    def described(self, name: str, mode: str, **keys: Any) -> dict[str, Any]:
        """A deployment file with our router."""
        transfer = {} if self.on_cpu or mode == "plain" else {"transfer": {"backend": "nixl"}}
        return {
            "name": name, "device": self.device, "mode": mode, "router": {"kind": "toolkit"},
            **transfer, **keys,
        }  # fmt: skip

    @contextmanager
    def measuring(self, step: str) -> Iterator[None]:
        """The GPU to itself, among steps that were started together: waits until all of them have
        their workers (`tests.gpu.together`), and for those that measure. No step does so twice."""
        with waiting_turn(self.scratch, step):
            yield

    @contextmanager
    def deployed(self, described: dict[str, Any], folder: str) -> Iterator[Running]:
        """Up, and gone afterwards."""
        from tests.e2e.deployments import deployed

        with deployed(described, self.folder(folder)) as up:
            yield up
