"""Rules about media in requests whose nested parts only workers take apart.

What is no part of a known kind passes: a worker says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from toolkit.router.validate.content import wrong_source
from toolkit.router.validate.field import Rule
from toolkit.router.validate.limits import Limits
from toolkit.router.validate.schema import too_large
from toolkit.settings.router.permissions import ALLOWABLE

Found = Iterator[tuple[str, Any]]
"""The kind of each part that holds media, and where the media are: a text as a rule."""
_URL_PARTS = ("image_url", "video_url", "audio_url")


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    for each in value if isinstance(value, list) else ():
        if isinstance(each, dict):
            yield each


def _of_messages(value: Any) -> Found:
    """Anthropic's blocks: images, and those in results of tools."""
    blocks = [block for message in _dicts(value) for block in _dicts(message.get("content"))]
    for block in blocks:
        if block.get("type") == "tool_result":
            yield from _images(block.get("content"))
    yield from _images(blocks)


def _images(blocks: Any) -> Found:
    for block in _dicts(blocks):
        if block.get("type") == "image":
            source = block.get("source")
            encoded = isinstance(source, dict) and source.get("type") == "base64"
            url = source.get("url") if isinstance(source, dict) else source
            yield "image", "data:" if encoded else url


def _of_input(value: Any) -> Found:
    """Items of /v1/responses: messages, and what tools gave."""
    for item in _dicts(value):
        for name in ("content", "output"):
            yield from _urls(item.get(name))


def _urls(parts: Any) -> Found:
    for part in _dicts(parts):
        kind = part.get("type")
        if kind in ("input_audio", "input_video", "input_file"):
            yield kind, part.get("file_url") or part.get("video_url") or "data:"
        elif kind == "input_image" or kind in _URL_PARTS:
            url = part.get("image_url" if kind == "input_image" else kind)
            yield kind, url.get("url") if isinstance(url, dict) else url


def _of_embedding(value: Any) -> Found:
    for each in _dicts(value):
        for name in ("image", "video"):
            if each.get(name) is not None:
                yield name, each[name]


def _of_documents(value: Any) -> Found:
    if isinstance(value, list):
        yield from _urls(value)
        for each in value:
            yield from _urls(each)


def _media(says: str, find: Callable[[Any], Found]) -> Rule:
    def wrong(name: str, value: Any, limits: Limits) -> str | None:
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

    return Rule(says, wrong)


def _schemas(name: str, value: Any, limits: Limits) -> str | None:
    for index, tool in enumerate(_dicts(value)):
        for key in ("input_schema", "parameters"):
            if why := too_large(tool.get(key)):
                return f"{name}[{index}].{key} {why}."
    return None


MESSAGES = _media("media only where allowed", _of_messages)
INPUT = _media("media only where allowed", _of_input)
EMBEDDED = _media("media only where allowed", _of_embedding)
DOCUMENTS = _media("media only where allowed", _of_documents)
TOOLS = Rule("their schemas as those of chat's tools", _schemas)
