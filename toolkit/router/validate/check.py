"""Apply the table to one body."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from toolkit.router.validate.declared import not_in_release
from toolkit.router.validate.endpoints import ENDPOINTS, NOT_ELSEWHERE
from toolkit.router.validate.field import Fate, Field
from toolkit.router.validate.limits import BodyLimits
from toolkit.router.validate.models import LONG, is_long, known, model, plain
from toolkit.router.validate.parameters import checked_all
from toolkit.router.validate.private import is_ours, without_ours
from toolkit.router.validate.refusal import invalid, refusal
from toolkit.settings.router.permissions import ALLOWABLE

MOST_ERRORS = 256
"""That are told one by one."""
MAX_PLACE = 1000
"""Characters of a key where an error tells its place."""
MAX_FIELDS = 512
"""Of a body: each of the prompts and samples that it asks for gets a copy of them. The table knows
less than a hundred."""


def check(endpoint: str, body: dict[str, Any], limits: BodyLimits) -> dict[str, Any]:
    """What of a client's body may go to a worker; the body itself is left as it is.

    Fields are dropped or refused as the table says, and so is what the release of the workers does
    not know though a newer one does; what passes has SGLang's types, and the values
    are those that a worker will read (SGLang takes "5" for 5 and "true" for true in OpenAI
    requests; the router must see the same). Checking again changes nothing.

    Raises:
        ApiError: 400, with what is wrong: types in FastAPI's words, values in SGLang's where it
            has any.
    """
    if len(body) > MAX_FIELDS:
        raise refusal(f"The body has {len(body)} fields; a request has at most {MAX_FIELDS}.")
    rows, required = known(endpoint, limits.allow, limits.release)
    good: dict[str, Any] = {}
    easy = required <= body.keys()
    for name, value in body.items():
        row = rows.get(name)
        if row is not None:
            good[name] = value
            easy = easy and plain(row, value)
        elif _goes_on(endpoint, name, value, limits):
            good[name] = without_ours(value)
    if not easy:
        _validate(endpoint, good, limits)
    for name, value in good.items():
        row = rows.get(name)
        if row is not None and row.field.rule is not None and value is not None:
            wrong = row.field.rule.wrong(name, value, limits)
            if wrong is not None:
                raise refusal(wrong)
    if endpoint == "generate":
        params = checked_all(good, limits)
        if params is not None:
            good["sampling_params"] = params
    return good


def _validate(endpoint: str, good: dict[str, Any], limits: BodyLimits) -> None:
    """Put the values there that SGLang's own types make of them. ApiError 400 when they cannot."""
    table = ENDPOINTS[endpoint]
    try:
        made = model(endpoint, limits.allow, limits.release, is_long(good))
        seen = made.__pydantic_validator__.validate_python(good, from_attributes=True)
    except ValidationError as error:
        if error.error_count() > MOST_ERRORS:
            raise refusal(f"{error.error_count()} values of the body have wrong types.") from None
        raise invalid(_details(error), endpoint) from error
    except OverflowError as error:
        raise refusal(f"A number is too large: {error}.") from error
    values = seen.__dict__
    for name in seen.__pydantic_fields_set__:
        if table[name].kept or table[name].unread:
            continue
        value = values[name]
        if isinstance(value, BaseModel):
            value = value.model_dump(exclude_unset=True)
        if name == "custom_params":
            value = without_ours(value, sglang=True)
        good[name] = value


def _goes_on(endpoint: str, name: str, value: Any, limits: BodyLimits) -> bool:
    """Whether a field goes on that is not one of those that pass: not what policy drops, but what
    SGLang does not know, since OpenAI's clients send many such and SGLang passes over them.

    Raises:
        ApiError: 400 for what policy refuses, and for what the workers' release lacks.
    """
    field = ENDPOINTS[endpoint].get(name)
    if field is None:
        return name not in NOT_ELSEWHERE and not is_ours(name)
    if field.passes(limits.allow):
        if field.lacking is Fate.REFUSE and field.asks(value):
            raise refusal(not_in_release(endpoint, name, limits.release))
    elif field.policy is Fate.REFUSE and not field.asks_nothing(value):
        raise refusal(_not_allowed(field))
    return False


def _not_allowed(field: Field) -> str:
    if field.allow is None:
        return f"{field.name} is not taken from clients: {field.why}."
    return (
        f"{field.name} is not allowed by this deployment: {field.why}. Its operator can allow it "
        f"with {field.allow!r} in `allow` ({ALLOWABLE[field.allow]})."
    )


def _details(error: ValidationError) -> list[dict[str, Any]]:
    """As FastAPI lists them, but that nothing long is quoted."""
    return [
        {**detail, "loc": _place(detail["loc"]), "input": _quoted(detail["input"])}
        for detail in error.errors(include_url=False)
    ]


def _place(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    names = (each[:MAX_PLACE] if isinstance(each, str) else each for each in loc)
    return ("body", *names)


def _quoted(value: Any) -> Any:
    return "..." if isinstance(value, (str, list, dict)) and len(value) > LONG else value
