"""One row of the table of request validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from toolkit.router.validate.declared import default
from toolkit.router.validate.handover import UNJUDGED, Handover
from toolkit.router.validate.limits import BodyLimits


class Fate(StrEnum):
    """What becomes of a client's field.

    DROP: taken out without a word, since the answer is the same without it. REFUSE: a 400, since
    it would not be; values that ask for nothing (null, false, the default) are dropped instead.
    """

    PASS = "passed"
    DROP = "dropped"
    REFUSE = "refused"


@dataclass(frozen=True, slots=True)
class ValueRule:
    """What values are good. `wrong(name, value, limits)`: why one is not, or None."""

    says: str
    wrong: Callable[[str, Any, BodyLimits], str | None]


@dataclass(frozen=True, slots=True)
class Field:
    """A field that SGLang knows, at one endpoint (`place`). Its type, and whether it must be there,
    SGLang declares (`declared`); what stands here is our decision.

    `why`: the reason for the policy, in a line. `rule` is asked when the type is right and the
    value not null. `allow` names what in the deployment makes an otherwise refused or dropped field
    pass. `default`: a value that asks for nothing; SGLang's own where the row says none.
    `handover`: what the field means where more than one worker has a part in a request; `inside`:
    what some of its values mean there, instead. `lacking`: what becomes of a field that passes
    where a worker's release of SGLang does not have it (`declared.lacks`).

    Of types: `unread`, a worker checks it; `kept`, the client's own value goes on, not what
    pydantic made of it (messages and the like, which the router does not read); `null` is taken
    too, since SGLang fills something in. `quick` says of values that are no single text or number
    whether pydantic would give them back as they are. `each`: a batch of /generate may have one
    for each prompt.
    """

    name: str
    place: str
    why: str
    policy: Fate = Fate.PASS
    rule: ValueRule | None = None
    allow: str | None = None
    default: Any = None
    handover: Handover = UNJUDGED
    inside: Callable[[Any], Handover] | None = None
    lacking: Fate = Fate.REFUSE
    unread: bool = False
    kept: bool = False
    null: bool = False
    quick: Callable[[Any], bool] | None = None
    each: bool = False

    @property
    def typed(self) -> bool:
        """Whether the router checks its type somewhere."""
        return not self.unread and (self.policy is Fate.PASS or self.allow is not None)

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
        default = self.default
        if type(value) is type(default) and value == default:
            return False
        return type(value) is int or bool(value)


def row(
    names: str, places: str, why: str, policy: Fate = Fate.PASS, **decision: Any
) -> Iterator[Field]:
    """One decision about a field, or about several of which the same is true, at these endpoints
    (`sampling_params` is one of them)."""
    for place in places.split():
        for name in names.split():
            yield Field(name, place, why, policy, **{"default": default(place, name), **decision})


def tables(*rows: Iterator[Field]) -> dict[str, dict[str, Field]]:
    """By place and name; ValueError for two rows of one field."""
    found: dict[str, dict[str, Field]] = {}
    for each in rows:
        for field in each:
            if found.setdefault(field.place, {}).setdefault(field.name, field) is not field:
                raise ValueError(f"{field.place}.{field.name} is in the table twice")
    return found
