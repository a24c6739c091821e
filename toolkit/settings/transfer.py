"""Section `transfer`: how KV moves between workers."""

from typing import Literal

from toolkit.settings.section import Section, key

SENDING = ("auto", "mooncake", "mooncake_tcp")
"""Backends with which decode workers send KV to one another (`patches.move`)."""


class Transfer(Section):
    """How KV moves. `auto`: mooncake_tcp on CPU, mooncake on CUDA."""

    backend: Literal["auto", "mooncake", "mooncake_tcp", "nixl", "mori", "ascend", "fake"] = key(
        "auto", "`auto` is `mooncake_tcp` on the CPU and `mooncake` on CUDA"
    )
    ib_device: str | None = key(None, "RDMA devices, as SGLang names them")
