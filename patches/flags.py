"""A worker's flags as SGLang has resolved them, and the model that they describe.

From SGLang 0.5.20 on the flags stay what somebody gave; what is made of them is asked for. In
0.5.17 they are resolved as they are read, and are written over.
"""

from collections.abc import Sequence
from itertools import pairwise

from patches.sglang_types import ModelConfig, ServerArgs

OVERRIDES = "sglang.srt.arg_groups.overrides"
SERVER_ARGS = "sglang.srt.server_args.ServerArgs"
ASKED = (
    f"{OVERRIDES}.resolving_view",
    f"{OVERRIDES}.model_config_of",
    f"{SERVER_ARGS}.resolve_once",
)
"""What is called here from 0.5.20 on."""
WRITTEN = (f"{SERVER_ARGS}.get_model_config",)
"""And in 0.5.17; no later release has it, so a variant that wants it is for that one alone."""

DETERMINISTIC = (
    "sglang.srt.server_args.DETERMINISTIC_ATTENTION_BACKEND_CHOICES",
    "sglang.srt.server_args.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND",
)
"""Lists of attention backends that go with `--enable-deterministic-inference`."""

BACKUP = "--disaggregation-decode-retraction-backup"


def understood(argv: Sequence[str]) -> list[str]:
    """`argv` without what says to the installed release what it does anyway: 0.5.17 keeps the KV of
    retracted requests as CPU tensors, and has no flag for it, which the launcher gives on a CPU."""
    from sglang.srt.server_args import ServerArgs

    if hasattr(ServerArgs, BACKUP.removeprefix("--").replace("-", "_")):
        return list(argv)
    dropped = {at for at, pair in enumerate(pairwise(argv)) if pair == (BACKUP, "cpu_tensor")}
    return [each for at, each in enumerate(argv) if not {at, at - 1} & dropped]


def resolve_flags(server_args: ServerArgs) -> None:
    """Resolve them, if they are not yet. Raises whatever SGLang has against them."""
    resolve_once = getattr(server_args, "resolve_once", None)
    if resolve_once is not None:
        resolve_once()


def resolved_view(server_args: ServerArgs) -> ServerArgs:
    """What SGLang has made of them, by the flags' names."""
    from sglang.srt.arg_groups import overrides

    view = getattr(overrides, "resolving_view", None)
    return server_args if view is None else view(server_args)


def model_config(server_args: ServerArgs) -> ModelConfig:
    """SGLang's `ModelConfig` of the model that resolved flags name."""
    from sglang.srt.arg_groups import overrides

    # 0.5.17 asks the flags themselves.
    described = getattr(overrides, "model_config_of", lambda flags: flags.get_model_config())
    found: ModelConfig = described(server_args)
    return found


def allow_deterministic() -> None:
    """Have SGLang take `--enable-deterministic-inference` together with the attention of the CPU
    (`patches.cpu.deterministic`)."""
    import pkgutil

    for name in DETERMINISTIC:
        choices = pkgutil.resolve_name(name)
        if "torch_native" not in choices:
            choices.append("torch_native")
