"""Validation of guided output: type, size, depth, and what could never start."""

from __future__ import annotations

from typing import Any

import orjson

from toolkit.router.validate import schema as schemas
from toolkit.router.validate.ebnf import endless
from toolkit.router.validate.field import ValueRule
from toolkit.router.validate.limits import BodyLimits
from toolkit.router.validate.refusal import shown

MAX_TEXT = 64 * 1024
"""Characters of a grammar or schema; workers take no more (patches/http/request_values.py)."""
MAX_NESTED = 64
"""Brackets within brackets."""
ANY = "$$ANY$$"
"""SGLang's word for any JSON."""


def wrong_schema(name: str, value: Any) -> str | None:
    """Why a decoded JSON schema cannot guide."""
    if not isinstance(value, (dict, bool)):
        return f"{name} must be a JSON schema (an object), got {shown(value)}."
    why = schemas.too_large(value)
    if why is not None:
        return f"{name} {why}; guided output takes smaller ones."
    ref = schemas.circular(value)
    if ref is not None:
        return f"{name} cannot be followed: $ref {shown(ref)} only refers to itself."
    return None


def _json_schema(name: str, value: Any, limits: BodyLimits) -> str | None:
    if wrong := _text(name, value):
        return wrong
    if value in ("", ANY):
        return None
    try:
        schema = orjson.loads(value)
    except ValueError as error:  # lone surrogates too
        return f"{name} must be a JSON schema as a string: {error}"
    return wrong_schema(name, schema)


def _structural_tag(name: str, value: Any, limits: BodyLimits) -> str | None:
    if wrong := _text(name, value):
        return wrong
    if not value:
        return None
    try:
        tag = orjson.loads(value)
    except ValueError as error:
        return f"{name} must be a structural tag as a JSON string: {error}"
    return wrong_tag(name, tag)


def wrong_tag(name: str, tag: Any) -> str | None:
    """Why a decoded structural tag cannot guide."""
    if not isinstance(tag, dict):
        return f"{name} must be an object, got {shown(tag)}."
    why = schemas.too_large(tag)
    if why is not None:
        return f"{name} {why}; guided output takes smaller ones."
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if structures is None:
        if not isinstance(tag.get("format"), dict):
            return f"{name} must have structures and triggers, or a format."
        return _inner(name, tag["format"])
    if not isinstance(structures, list) or not isinstance(triggers, list):
        return f"{name}.structures and {name}.triggers must be lists."
    if not all(isinstance(each, str) and each for each in triggers):
        return f"{name}.triggers must be strings that are not empty."
    for each in structures:
        if not isinstance(each, dict):
            return f"{name}.structures must be objects, got {shown(each)}."
        if not isinstance(each.get("begin"), str) or not isinstance(each.get("end"), str):
            return f"{name}.structures must have a begin and an end, both strings."
        schema = each.get("schema")
        if schema is not None and (wrong := wrong_schema(f"{name}.structures.schema", schema)):
            return wrong
    return None


def _inner(name: str, found: Any) -> str | None:
    """The schemas within a format."""
    stack = [found]
    while stack:
        each = stack.pop()
        if isinstance(each, list):
            stack.extend(each)
        elif isinstance(each, dict):
            schema = each.get("json_schema")
            if schema is not None and (wrong := wrong_schema(f"{name}.json_schema", schema)):
                return wrong
            stack.extend(part for key, part in each.items() if key != "json_schema")
    return None


def _regex(name: str, value: Any, limits: BodyLimits) -> str | None:
    if wrong := _text(name, value):
        return wrong
    return _nested(name, value)


def _ebnf(name: str, value: Any, limits: BodyLimits) -> str | None:
    if wrong := _text(name, value) or _nested(name, value):
        return wrong
    rule = endless(value)
    if rule is not None:
        return f"{name} cannot be followed: rule {shown(rule)} never ends, it always needs itself."
    return None


def _text(name: str, value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{name} must be a string, got {shown(value)}."
    if len(value) > MAX_TEXT:
        return f"{name} must have at most {MAX_TEXT} characters, got {len(value)}."
    if "\x00" in value:
        return f"{name} must not contain NUL."
    return None


def _nested(name: str, value: str) -> str | None:
    if value.count("(") <= MAX_NESTED:
        return None
    depth = 0
    for character in value:
        if character == "(":
            depth += 1
            if depth > MAX_NESTED:
                return f"{name} must not nest more than {MAX_NESTED} parentheses."
        elif character == ")":
            depth -= 1
    return None


_SIZE = f"at most {MAX_TEXT} characters"
_DEPTH = f"at most {schemas.MAX_DEPTH} levels and {schemas.MAX_NODES} parts"
JSON_SCHEMA = ValueRule(f"JSON schema as a string; {_DEPTH}; no $ref to itself alone", _json_schema)
STRUCTURAL_TAG = ValueRule(f"structural tag as a JSON string; {_DEPTH}", _structural_tag)
REGEX = ValueRule(f"regular expression; {_SIZE}, {MAX_NESTED} nested parentheses", _regex)
EBNF = ValueRule(f"EBNF; {_SIZE}, {MAX_NESTED} nested parentheses; every rule ends", _ebnf)
