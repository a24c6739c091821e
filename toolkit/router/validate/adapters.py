"""The field `model`: a model, or a model and one of its LoRA adapters (`base:adapter`)."""

from __future__ import annotations

from typing import Any

from toolkit.router.validate import rules
from toolkit.router.validate.field import Rule
from toolkit.router.validate.limits import Limits
from toolkit.router.validate.refusal import shown
from toolkit.settings.router.permissions import ALLOWABLE


def names_adapter(model: Any) -> bool:
    """As SGLang reads it (`_parse_model_parameter`): behind the first colon stands an adapter."""
    return isinstance(model, str) and bool(model.partition(":")[2].strip())


def _model(name: str, value: Any, limits: Limits) -> str | None:
    wrong = rules.NAME.wrong(name, value, limits)
    if wrong is None and names_adapter(value) and "lora" not in limits.allow:
        return (
            f"{name} {shown(value)} names a LoRA adapter, which is not allowed by this deployment: "
            "which adapters there are is the deployment's business. Its operator can allow it with "
            f"'lora' in `allow` ({ALLOWABLE['lora']})."
        )
    return wrong


def _no_adapter(name: str, value: Any, limits: Limits) -> str | None:
    if names_adapter(value):
        return (
            f"{name} {shown(value)} names a LoRA adapter, and SGLang's /v1/responses would answer "
            "with the model alone. Use /v1/chat/completions."
        )
    return rules.NAME.wrong(name, value, limits)


MODEL = Rule("string of at most 4096 characters; `base:adapter` with lora", _model)
BASE_MODEL = Rule("string of at most 4096 characters, no `base:adapter`", _no_adapter)
