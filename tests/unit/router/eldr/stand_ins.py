"""A configured router and decode workers for it, without a process."""

from typing import Any

from toolkit.settings.router.config import RouterConfig

PREFILL = {"name": "p", "role": "prefill", "url": "http://127.0.0.1:1", "bootstrap_port": 1}


def decode(name: str, dp_size: int = 1, **more: object) -> dict[str, Any]:
    url = "http://127.0.0.1:2"
    return {"name": name, "role": "decode", "url": url, "dp_size": dp_size} | more


def configured(*decodes: dict[str, Any], **more: object) -> RouterConfig:
    return RouterConfig.model_validate({"workers": [PREFILL, *decodes], **more})
