"""One row of the table of request validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from toolkit.router.validate.handover import UNJUDGED, Handover
from toolkit.router.validate.limits import Limits


class Fate(StrEnum):
    """What becomes of a client's field.

    DROP: taken out without a word, since the answer is the same without it. REFUSE: a 400, since
    it would not be; values that ask for nothing (null, false, the default) are dropped instead.
    """

    PASS = "passed"
    DROP = "dropped"
    REFUSE = "refused"


@dataclass(frozen=True, slots=True)
class Rule:
    """What values are good. `wrong(name, value, limits)`: why one is not, or None."""

    says: str
    wrong: Callable[[str, Any, Limits], str | None]


@dataclass(frozen=True, slots=True)
class Field:
    """A field that SGLang knows.

    `type` as SGLang declares it, `why` the reason for the policy in a line; `rule` is asked when
    the type is right and the value not null. `allow` names what in the deployment makes an
    otherwise refused or dropped field pass. `kept`: the client's own value goes on, not what
    pydantic made of it (messages and the like, which the router does not read). `quick` says of
    values that are no single text or number whether pydantic would give them back as they are.
    `handover`: what the field means where more than one worker has a part in a request.
    `lacking`: what becomes of a field that passes where a worker's release of SGLang does not have
    it (`declared.lacks`).
    """

    name: str
    type: Any
    why: str
    policy: Fate = Fate.PASS
    rule: Rule | None = None
    allow: str | None = None
    required: bool = False
    kept: bool = False
    default: Any = None
    quick: Callable[[Any], bool] | None = None
    handover: Handover = UNJUDGED
    lacking: Fate = Fate.REFUSE

    def passes(self, allow: frozenset[str]) -> bool:
        """Where the deployment allows these."""
        return self.policy is Fate.PASS or self.allow in allow

    def asks_nothing(self, value: Any) -> bool:
        """For a refused field: its value is the one that it has when it is not there."""
        if value is None or value is self.default:
            return True
        return isinstance(value, list) and all(self.asks_nothing(each) for each in value)

    def asks(self, value: Any) -> bool:
        """For a field that passes: a value asks for more than its absence does. 0 does, unless it
        is the default: `logprobs: 0` is a request for log probabilities."""
        return value != self.default if type(value) is int else bool(value)


def table(*fields: Field) -> dict[str, Field]:
    """By name; ValueError for two of the same name."""
    rows = {field.name: field for field in fields}
    if len(rows) != len(fields):
        raise ValueError("a field is in the table twice")
    return rows
