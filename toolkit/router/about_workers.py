"""What clients are told of the model and the server that answer them: an allow list.

A worker's own answers hold its whole configuration: paths, ports, names of hosts. A client needs
what the model is and what it takes. The admin gets the whole.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import orjson

from toolkit.router.places import without_places_in

MODEL_INFO = frozenset({
    "model_path", "served_model_name", "tokenizer_path", "is_generation",
    "preferred_sampling_params", "weight_version", "reasoning_parser", "tool_call_parser",
    "has_image_understanding", "has_audio_understanding", "model_type", "architectures",
})  # fmt: skip
SERVER_INFO = frozenset({
    "version", "model_path", "served_model_name", "tokenizer_path", "context_length", "dtype",
    "quantization", "kv_cache_dtype", "is_embedding", "reasoning_parser", "tool_call_parser",
    "max_total_num_tokens", "max_req_input_len", "max_running_requests", "weight_version",
})  # fmt: skip
MODEL_CARD = frozenset({
    "id", "object", "created", "owned_by", "root", "parent", "max_model_len",
})  # fmt: skip
ERROR = frozenset({"message", "type", "param", "code"})
SHOWN = {
    "/get_model_info": MODEL_INFO,
    "/model_info": MODEL_INFO,
    "/get_server_info": SERVER_INFO,
    "/server_info": SERVER_INFO,
}
"""What of each answer a client sees; of models (`/v1/models`) it is MODEL_CARD."""
_PATHS = ("model_path", "tokenizer_path", "root")


def for_client(path: str, status: int, body: bytes) -> bytes | None:
    """What of a worker's answer to GET `path` a client sees; None: it is no JSON object."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(told, dict):
        return None
    if status != 200:
        return orjson.dumps({"error": _error(told)})
    names = SHOWN.get(path, MODEL_CARD)
    if path == "/v1/models":
        cards = told.get("data")
        cards = cards if isinstance(cards, list) else []
        rows = [_some(card, names) for card in cards if isinstance(card, dict)]
        return orjson.dumps({"object": "list", "data": rows})
    return orjson.dumps(_some(told, names))


def _some(told: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    shown = {name: value for name, value in told.items() if name in names}
    for name in _PATHS:
        if isinstance(shown.get(name), str):
            shown[name] = _last(shown[name])
    return shown


def _last(path: str) -> str:
    """The name of a folder; a model of a hub (`OWNER/NAME`) is no path."""
    return PurePath(path).name if path.startswith(("/", ".", "~")) else path


def _error(told: dict[str, Any]) -> dict[str, Any]:
    said = told.get("error")
    said = said if isinstance(said, dict) else told
    error = {name: value for name, value in said.items() if name in ERROR}
    error["message"] = without_places_in(str(error.get("message", "The worker refused this.")))
    return error
