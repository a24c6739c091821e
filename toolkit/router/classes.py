"""Which class a request has: what the operator says of its sender, else what it says itself."""

from __future__ import annotations

from typing import Any

from toolkit.contract.headers import CLASS
from toolkit.contract.request_class import RequestClass
from toolkit.router.errors import ApiError
from toolkit.settings.router.classes import LATENCY_SENSITIVE, STANDARD, Classes


def class_of(classes: Classes, body: dict[str, Any], header: str | None, key: str) -> RequestClass:
    """Of a request with this body, this header (None: without one), and this key's name.

    ApiError: 400, the header names no class.
    """
    if key and key in classes.keys:
        return classes.keys[key]
    said = _said(classes, body, header)
    if said is None:
        return classes.default
    if said is LATENCY_SENSITIVE and classes.claim != "all" and key not in classes.claim:
        return STANDARD
    return said


def _said(classes: Classes, body: dict[str, Any], header: str | None) -> RequestClass | None:
    """By the request itself; values that nothing here knows say nothing."""
    user, tier, number = (body.get(name) for name in ("user", "service_tier", "priority"))
    if isinstance(user, str) and user in classes.users:
        return classes.users[user]
    if header is not None:
        try:
            return RequestClass(header)
        except ValueError:
            known = ", ".join(RequestClass)
            raise ApiError(400, f"{CLASS}: {header[:40]!r} is none of {known}") from None
    if isinstance(tier, str) and tier in classes.service_tier:
        return classes.service_tier[tier]
    if classes.priority is None or type(number) is not int:
        return None
    if number >= classes.priority.latency_sensitive:
        return LATENCY_SENSITIVE
    return RequestClass.BEST_EFFORT if number <= classes.priority.best_effort else STANDARD
