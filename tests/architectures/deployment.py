"""Deployments of a tiny model: described, dry-run, started."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.architectures.configs import Architecture
from tests.e2e.deployments import deployed
from toolkit.contract.variables import LAYERS_VARIABLE, WORKER_KEY_VARIABLE
from toolkit.launch.checks import possible
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.resolve import resolve
from toolkit.launch.running import Running
from toolkit.settings.load import load_deployment

KV_TOKENS = 4096


def described(
    architecture: Architecture,
    model: Path,
    *,
    device: str = "cpu",
    decodes: int = 2,
    kv_tokens: int = KV_TOKENS,
    prefill_args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A deployment file's contents: late dispatch, experts captured; `kv_tokens` of prefill. On the
    CPU prefill also makes signatures, of every layer that has experts: a profile, which would ask
    for them, is measured with a model that runs."""
    own = architecture.cpu_args if device == "cpu" else {}
    role = {"kv_tokens": KV_TOKENS, "max_running": 8, "args": own}
    layers = ",".join(map(str, architecture.moe_layers))
    signatures = {"env": {LAYERS_VARIABLE: layers}} if device == "cpu" else {}
    return {
        "name": architecture.name,
        "device": device,
        "model": {"path": str(model), "served_name": architecture.name},
        "mode": "pd",
        "capture_experts": True,
        "prefill": {
            **role,
            **signatures,
            "kv_tokens": kv_tokens,
            "args": own | (prefill_args or {}),
        },
        "decode": {**role, "replicas": decodes},
        "router": {"kind": "toolkit", "dispatch": "late"},
    }


def problems(contents: dict[str, Any], folder: Path) -> list[Problem]:
    """What `toolkit launch --dry-run` says of it."""
    file = folder / "deployment.yaml"
    file.write_text(json.dumps(contents))
    try:
        return possible.check(resolve(load_deployment(file)), dry_run=True)
    except LaunchError as error:
        return list(error.problems)


@contextmanager
def up(contents: dict[str, Any], folder: Path) -> Iterator[Running]:
    """Start it; its key is in the environment as long as it runs."""
    before = os.environ.get(WORKER_KEY_VARIABLE)
    folder.mkdir(parents=True, exist_ok=True)
    with deployed(contents, folder) as running:
        os.environ[WORKER_KEY_VARIABLE] = running.worker_key
        try:
            yield running
        finally:
            del os.environ[WORKER_KEY_VARIABLE]
            if before is not None:
                os.environ[WORKER_KEY_VARIABLE] = before
