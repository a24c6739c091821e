"""Putting the answers of sub-requests together: n > 1, batches, and prompt log-probabilities."""

from typing import Any

import orjson

from toolkit.router.client import ClientStream, Feed
from toolkit.router.request import Endpoint, Job
from toolkit.router.resume import parse_event, split_events

_INPUT_KEYS = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")
_LOGPROB_KEYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def merge_answers(job: Job, answers: list[dict[str, Any]]) -> Any:
    """The one JSON answer for a split request: a list for /generate, choices otherwise."""
    if job.endpoint == "generate":
        return answers
    merged = answers[0]
    merged["choices"] = [
        {**choice, "index": index}
        for index, answer in enumerate(answers)
        for choice in answer.get("choices", [])[:1]
    ]
    merged["usage"] = merge_usage([a.get("usage") or {} for a in answers], job.per_prompt)
    return merged


def merge_usage(usages: list[dict[str, Any]], per_prompt: int) -> dict[str, Any]:
    """Sum usage as SGLang does: each prompt's tokens once, every sample's completion tokens."""
    prompt = sum(int(u.get("prompt_tokens") or 0) for u in usages[::per_prompt])
    completion = sum(int(u.get("completion_tokens") or 0) for u in usages)
    merged = {**usages[0], "prompt_tokens": prompt, "completion_tokens": completion}
    merged["total_tokens"] = prompt + completion
    if any(u.get("reasoning_tokens") for u in usages):
        merged["reasoning_tokens"] = sum(int(u.get("reasoning_tokens") or 0) for u in usages)
    details = [u.get("prompt_tokens_details") for u in usages[::per_prompt]]
    if isinstance(details[0], dict):
        cached = sum(int((d or {}).get("cached_tokens") or 0) for d in details)
        merged["prompt_tokens_details"] = {**details[0], "cached_tokens": cached}
    return merged


def completion_tokens(body: bytes) -> int:
    """Of a whole answer; 0 when it does not say."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return 0
    for name in ("usage", "meta_info"):
        said = answer.get(name) if isinstance(answer, dict) else None
        count = said.get("completion_tokens") if isinstance(said, dict) else None
        if type(count) is int and count > 0:
            return count
    return 0


class SubStream:
    """An `Output` for one choice of a merged stream: rewrites its index and the stream's id."""

    def __init__(self, job: Job, index: int, client: ClientStream) -> None:
        self._job = job
        self._index = index
        self._client = client
        self.usage: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None

    def join(self, feed: Feed) -> None:
        self._client.join(feed)

    def write(self, events: bytes) -> None:
        out = []
        for data in split_events(events):
            event = parse_event(data)
            if event is not None and self._rewrite(event):
                out.append(b"data: " + orjson.dumps(event) + b"\n\n")
        if out:
            self._client.write(b"".join(out))

    def _rewrite(self, event: dict[str, Any]) -> bool:
        if self._job.endpoint == "generate":
            event["index"] = self._index
            return True
        event["id"] = self._job.rid
        choices = event.get("choices")
        if not choices and event.get("usage") is not None:
            self.usage, self._last = event["usage"], event
            return False  # one usage event for all, at the end
        for choice in choices or ():
            choice["index"] = self._index
        return True

    def usage_event(self, usage: dict[str, Any]) -> bytes:
        return b"data: " + orjson.dumps({**(self._last or {}), "usage": usage}) + b"\n\n"


def stream_usage(job: Job, parts: list[SubStream]) -> bytes:
    """The merged usage event; empty when no part brought one."""
    if not parts or any(part.usage is None for part in parts):
        return b""
    merged = merge_usage([part.usage or {} for part in parts], job.per_prompt)
    return parts[0].usage_event(merged)


def add_prompt_logprobs(endpoint: Endpoint, data: bytes, prefill: dict[str, Any]) -> bytes:
    """An SSE event of the decode with the prompt's log-probabilities of the prefill's answer."""
    event = parse_event(data)
    if event is None:
        return data
    put_prompt_logprobs(endpoint, event, prefill)
    return b"data: " + orjson.dumps(event) + b"\n\n"


def put_prompt_logprobs(
    endpoint: Endpoint, answer: dict[str, Any], prefill: dict[str, Any]
) -> None:
    """The decode never ran the prompt: its input log-probabilities are the prefill's."""
    if endpoint == "generate":
        source, target = prefill.get("meta_info") or {}, answer.get("meta_info")
        for key in _INPUT_KEYS:
            if isinstance(target, dict) and source.get(key):
                target[key] = source[key]
        return
    choices, prefill_choices = answer.get("choices") or [], prefill.get("choices") or []
    if not choices or not prefill_choices:
        return
    source = prefill_choices[0].get("logprobs") or {}
    prompt_tokens = int((prefill.get("usage") or {}).get("prompt_tokens") or 0)
    target = choices[0].get("logprobs")
    if target is None:
        target = choices[0]["logprobs"] = {key: [] for key in _LOGPROB_KEYS}
    for key in _LOGPROB_KEYS:
        head = (source.get(key) or [])[:prompt_tokens]
        if head and isinstance(target.get(key), list):
            target[key] = head + target[key]
