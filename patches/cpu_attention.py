"""CPU shim: a constant that DP attention asks of the attention backend.

Mends `TorchNativeAttnBackend` of SGLang 0.5.21, which lacks `get_cpu_graph_seq_len_fill_value`
(called in `srt/model_executor/forward_batch_info.py:1801` when idle ranks are padded).
"""

from __future__ import annotations

from typing import Any

from patches.base import EITHER, Patch, resolve

BACKEND = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
METHOD = "get_cpu_graph_seq_len_fill_value"


def _add_fill_value() -> None:
    def fill_value(_self: Any) -> int:
        return 1

    backend = resolve(BACKEND)
    if METHOD not in vars(backend):
        setattr(backend, METHOD, fill_value)


PATCH = Patch(
    name="cpu_attention",
    why="padding idle DP ranks needs a sequence length that the torch backend does not name",
    processes=EITHER,
    cpu_only=True,
    requires=(BACKEND,),
    attach=_add_fill_value,
)
