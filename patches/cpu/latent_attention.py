"""CPU shim: multi-head latent attention (DeepSeek V2, V3) always reads the latent KV.

`srt/models/deepseek_common/attention_backend_handler.py:48` (SGLang 0.5.21) has no handler for
`torch_native` and takes that of `triton`: a prompt without a cached prefix is then run with whole
keys and values of every head, which that backend looks for in the pool, where the latent rows are
(`srt/layers/attention/torch_native_backend.py:340` reads them with the wrong shape). The other way
that SGLang has, which decode and prompts behind a cached prefix take, is right on the CPU.
"""

from patches.base import Hook, Patch, Process, resolve
from patches.layers import Original

HANDLERS = "sglang.srt.models.deepseek_common.attention_backend_handler"
BACKEND = "torch_native"


def _latent_always(original: Original[object], cls: object, name: str) -> object:
    if name == BACKEND:
        return resolve(f"{HANDLERS}._dispatch_mla_subtype")
    return original(cls, name)


PATCH = Patch(
    name="cpu_latent_attention",
    why="models with latent attention (MLA) cannot run a prompt on the torch backend",
    processes=frozenset({Process.SCHEDULER}),
    cpu_only=True,
    hooks=(
        Hook(
            f"{HANDLERS}.AttentionBackendRegistry.get_handler",
            _latent_always,
            ("backend_name",),
        ),
    ),
    requires=(f"{HANDLERS}._dispatch_mla_subtype",),
)
