"""Media in requests: where they are, which may pass, and which requests are of nothing but text.

What is no part of a known kind passes: a worker says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from toolkit.router.validate.field import ValueRule
from toolkit.router.validate.handover import ALIKE, NO_TEXT, UNTRIED, Handover
from toolkit.router.validate.limits import BodyLimits
from toolkit.router.validate.refusal import shown
from toolkit.settings.router.permissions import ALLOWABLE

Found = Iterator[tuple[str, Any]]
"""The kind of each part that holds media, and where the media are: a text as a rule."""
_URL_PARTS = ("image_url", "video_url", "audio_url")
_CONTENTS = ("content", "output")
_URLS = ("http://", "https://")


def dicts(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in a list; none of what is no list."""
    for each in value if isinstance(value, list) else ():
        if isinstance(each, dict):
            yield each


def in_messages(value: Any) -> Found:
    """Of chat's messages, of Anthropic's, and of what goes into /v1/responses (messages, and what
    tools gave)."""
    for item in dicts(value):
        for name in _CONTENTS:
            if isinstance(item.get(name), list):
                yield from _in_parts(item[name])


def _in_parts(parts: Any) -> Found:
    for part in dicts(parts):
        kind = part.get("type")
        if kind == "text":
            continue
        if kind == "tool_result":
            yield from _in_parts(part.get("content"))
        elif kind == "image":
            source = part.get("source")
            encoded = isinstance(source, dict) and source.get("type") == "base64"
            url = source.get("url") if isinstance(source, dict) else source
            yield kind, "data:" if encoded else url
        elif kind in ("input_audio", "input_video", "input_file"):
            yield kind, part.get("file_url") or part.get("video_url") or "data:"
        elif kind == "input_image" or kind in _URL_PARTS:
            url = part.get("image_url" if kind == "input_image" else kind)
            yield kind, url.get("url") if isinstance(url, dict) else url


def _in_embedding(value: Any) -> Found:
    for each in dicts(value):
        for name in ("image", "video"):
            if each.get(name) is not None:
                yield name, each[name]


def _in_documents(value: Any) -> Found:
    yield from _in_parts(value)
    for each in value if isinstance(value, list) else ():
        yield from _in_parts(each)


def handover_of(messages: Any) -> Handover:
    """What messages mean for a request that passes from worker to worker."""
    for message in messages if isinstance(messages, list) else ():
        whole = type(message) is dict and type(message.get("content")) is str
        if not whole or "output" in message:
            break
    else:
        return ALIKE
    if any(True for _ in in_messages(messages)):
        return NO_TEXT
    found = [item.get(name) for item in dicts(messages) for name in _CONTENTS]
    parts = [part for each in found if isinstance(each, list) for part in each]
    text = all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
    return ALIKE if text else UNTRIED


def wrong_source(name: str, value: Any, limits: BodyLimits) -> str | None:
    """A path would be opened and a URL fetched by a worker, inside the deployment's network."""
    if isinstance(value, str):
        if value.startswith("data:"):
            return None
        if "media_urls" in limits.allow and value.startswith(_URLS):
            return None
    urls = " or an http(s) URL" if "media_urls" in limits.allow else ""
    return f"{name} must be a data: URI{urls}, got {shown(value, 40)}."


def _rule(find: Callable[[Any], Found]) -> ValueRule:
    def wrong(name: str, value: Any, limits: BodyLimits) -> str | None:
        for kind, where in find(value):
            if "media" not in limits.allow:
                return (
                    f"{name} holds {kind}, and media are not allowed by this deployment. Its "
                    f"operator can allow them with 'media' in `allow` ({ALLOWABLE['media']}); "
                    "workers that prefill and decode apart take none."
                )
            if wrong := wrong_source(f"{kind} in {name}", where, limits):
                return wrong
        return None

    return ValueRule("media only where allowed", wrong)


def _sources(name: str, value: Any, limits: BodyLimits) -> str | None:
    stack = [value]
    while stack:
        found = stack.pop()
        if isinstance(found, list):
            stack.extend(found)
        elif found is not None and (wrong := wrong_source(name, found, limits)):
            return wrong
    return None


MESSAGES = _rule(in_messages)
EMBEDDED = _rule(_in_embedding)
DOCUMENTS = _rule(_in_documents)
SOURCES = ValueRule("data: URIs; http(s) URLs with media_urls; never paths", _sources)
