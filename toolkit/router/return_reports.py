"""The body of POST /admin/returns: when the launcher expects its workers back."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=0)]
SHAPE = '{"workers": {NAME: {"usual_s": SECONDS or null, "back_in_s": SECONDS or null}}}'


class Notified(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a worker, as `toolkit.decide.returns` takes it."""

    usual_s: Seconds | None
    back_in_s: Seconds | None


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workers: dict[str, Notified]


def read(body: Any) -> dict[str, Notified] | str:
    """By worker; or what is wrong with the body, and how it should look."""
    try:
        return msgspec.convert(body, _Body).workers
    except msgspec.ValidationError as error:
        return f"the body must be {SHAPE}: {error}"
