"""Servers of SGLang's that would answer without the run's key. The launcher asks before a start,
and the worker itself (`patches.http.worker_key`). Checked against SGLang 0.5.21."""

from collections.abc import Mapping
from typing import Any

from toolkit.errors import Problem


def worker_problems(resolved: Mapping[str, Any]) -> list[Problem]:
    """Problems of one worker that asks for a key by its `patches.check_args` values; `where` is a
    flag."""
    found = {
        "grpc-port": resolved.get("grpc_port") is not None,
        "tokenizer-worker-num": (resolved.get("tokenizer_worker_num") or 1) > 1,
    }
    what = "that server would take requests without the run's key"
    return [Problem(flag, what, "leave it out") for flag, there in found.items() if there]
