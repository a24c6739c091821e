"""Greedy outputs of a worker, straight from it, to compare with a plain server's."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from toolkit.embedded import load_prompts

PROMPTS = [prompt.text for prompt in load_prompts()[::20]][:8]


NEW_TOKENS = 16


def generate(url: str, text: str, **extra: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    body = json.dumps({"text": text, "sampling_params": sampling} | extra).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def outputs(url: str) -> list[list[int]]:
    """Greedy token ids of every prompt, four in flight so that batches and ranks mix."""
    with ThreadPoolExecutor(4) as pool:
        return [answer["output_ids"] for answer in pool.map(lambda t: generate(url, t), PROMPTS)]


def post(url: str, path: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url + path, b""), timeout=60) as response:
        assert response.status == 200
