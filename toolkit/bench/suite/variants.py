"""Deployment files as mappings: what one says, and the same file with changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from toolkit.bench.suite.question import BASE, Asked, Changes


def changed(document: Mapping[str, Any], *changes: Changes) -> dict[str, Any]:
    """The file with these changes, one after the other."""
    found = deepcopy(dict(document))
    for each in changes:
        found = _merged(found, each)
    return found


def variant(document: Mapping[str, Any], asked: Asked, name: str) -> dict[str, Any]:
    """The file of a variant: the base's, and what it changes of that."""
    more = () if name == BASE else (asked.variants[name],)
    return changed(document, asked.variants[BASE], *more)


def _merged(old: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    found = dict(old)
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping) and value:
            before = found.get(key)
            found[key] = _merged(before if isinstance(before, Mapping) else {}, value)
        else:
            found[key] = deepcopy(value)
    return found


def router_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    router = document.get("router") or {}
    return router if isinstance(router, Mapping) else {"kind": router}


def role_of(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return document.get(name) or {}


def replicas_of(document: Mapping[str, Any]) -> int:
    decode = role_of(document, "decode")
    stages = decode.get("stages") or ()
    by_stages = sum(stage.get("replicas", 1) for stage in stages)
    return int(decode.get("replicas") or by_stages or 1)


def ranks_of(document: Mapping[str, Any]) -> int:
    return replicas_of(document) * int(role_of(document, "decode").get("dp", 1))
