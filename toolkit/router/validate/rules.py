"""Ranges of values. Where SGLang answers 400 to a value itself, the message here is its own.

Rules also check types: those of /generate's sampling parameters nobody else checks (SGLang 0.5.21
answers 500 to some wrong types and dies of others).
"""

from __future__ import annotations

from array import array
from typing import Any

from toolkit.contract.stop_patterns import MAX_STOP
from toolkit.router.validate.field import ValueRule
from toolkit.router.validate.limits import MAX_NAME, MAX_TOKENS, BodyLimits
from toolkit.router.validate.refusal import shown

INT64 = 2**63
MAX_BIAS = 1e6
MAX_STOPS = 32
"""SGLang's own limit (srt/sampling/sampling_params.py)."""


def number(low: float, high: float, says: str, message: str, *, above: bool = False) -> ValueRule:
    """`low` itself is good unless `above`. `message` has a place for the value."""

    def wrong(name: str, value: Any, limits: BodyLimits) -> str | None:
        if type(value) is not float and type(value) is not int:
            return f"{name} must be a number {says}, got {shown(value)}."
        # NaN compares false with everything
        good = (low < value if above else low <= value) and value <= high
        return None if good else message.format(shown(value))

    return ValueRule(f"number {says}", wrong)


def integer(low: int, high: int, message: str | None = None, also: int | None = None) -> ValueRule:
    """`also`: a value beside the range. A message of SGLang's is for what is below `low`."""
    says = f"integer from {low} to {_power(high)}" + ("" if also is None else f", or {also}")

    def wrong(name: str, value: Any, limits: BodyLimits) -> str | None:
        if type(value) is int:
            if low <= value <= high or value == also:
                return None
            if message is not None and value < low:
                return message.format(shown(value))
        return f"{name} must be an {says}, got {shown(value)}."

    return ValueRule(says, wrong)


def _power(value: int) -> str:
    return {MAX_TOKENS: "2**31 - 1", INT64 - 1: "2**63 - 1"}.get(value, str(value))


def _flag(name: str, value: Any, limits: BodyLimits) -> str | None:
    return None if type(value) is bool else f"{name} must be true or false, got {shown(value)}."


FLAG = ValueRule("true or false", _flag)


def text(most: int = MAX_NAME) -> ValueRule:
    """At most so many characters."""

    def wrong(name: str, value: Any, limits: BodyLimits) -> str | None:
        if not isinstance(value, str):
            return f"{name} must be a string, got {shown(value)}."
        if len(value) > most:
            return f"{name} must have at most {most} characters, got {len(value)}."
        return None

    return ValueRule(f"string of at most {most} characters", wrong)


NAME = text()


def of_each(rule: ValueRule, says: str) -> ValueRule:
    """For one value, or for a list with one for each prompt of a batch."""

    def wrong(name: str, value: Any, limits: BodyLimits) -> str | None:
        for each in value if isinstance(value, list) else [value]:
            if each is not None and (found := rule.wrong(name, each, limits)):
                return found
        return None

    return ValueRule(says, wrong)


NAMES = of_each(NAME, f"strings of at most {MAX_NAME} characters, one for each prompt")


def _stop(name: str, value: Any, limits: BodyLimits) -> str | None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        return f"{name} must be a string or a list of strings, got {shown(value)}."
    if len(texts) > MAX_STOPS:
        return f"at most {MAX_STOPS} stop strings are allowed, got {len(texts)}"
    size = sum(map(len, texts))
    if size > MAX_STOP:
        return f"{name} strings must have at most {MAX_STOP} characters together, got {size}."
    return None


STOP = ValueRule(
    f"a string or at most {MAX_STOPS}, together of at most {MAX_STOP} characters", _stop
)


def _stop_ids(name: str, value: Any, limits: BodyLimits) -> str | None:
    if not isinstance(value, list):
        return f"{name} must be a list of token ids, got {shown(value)}."
    for each in value:
        if each is not None and (type(each) is not int or not 0 <= each < limits.ids):
            return f"{name} must be token ids in [0, {limits.ids}), got {shown(each)}."
    return None


STOP_IDS = ValueRule("token ids in the vocabulary", _stop_ids)


def _bias(name: str, value: Any, limits: BodyLimits) -> str | None:
    if not isinstance(value, dict):
        return f"{name} must be an object of token ids and numbers, got {shown(value)}."
    for key, bias in value.items():
        try:
            token = int(key)
        except ValueError:
            return f"{name} must have token ids as keys, got {shown(key)}."
        if not 0 <= token < limits.ids:
            return f"{name} must has keys in [0, {limits.ids - 1}], got {shown(key)[1:-1]}."
        number = type(bias) is float or type(bias) is int
        if not number or not -MAX_BIAS <= bias <= MAX_BIAS:
            return f"{name} must have values in [-1e6, 1e6], got {shown(bias)} for {shown(key)}."
    return None


BIAS = ValueRule("object: token ids in the vocabulary to numbers in [-1e6, 1e6]", _bias)


def _top(name: str, value: Any, limits: BodyLimits) -> str | None:
    if 0 <= value <= limits.top_logprobs:
        return None
    return f"{name} must be in [0, {limits.top_logprobs}], got {shown(value)}."


TOP = of_each(ValueRule("0 to 1024", _top), "0 to 1024, at most the vocabulary")


def _object(name: str, value: Any, limits: BodyLimits) -> str | None:
    return None if isinstance(value, dict) else f"{name} must be an object, got {shown(value)}."


OBJECT = ValueRule("object", _object)
OBJECTS = of_each(OBJECT, "object, or a list with one for each prompt")


def _ids(name: str, value: Any, limits: BodyLimits) -> str | None:
    if not isinstance(value, list):
        return None  # a text
    if not value:
        return f"{name} cannot be empty."
    if isinstance(value[0], list):
        return next((wrong for row in value if (wrong := _ids(name, row, limits))), None)
    if isinstance(value[0], str):
        return None
    # The whole list first, in C; "Q" takes nothing below 0.
    try:
        array("Q", value)
        if max(value) < limits.ids:
            return None
    except OverflowError:
        pass
    bad = next(each for each in value if not 0 <= each < limits.ids)
    return (
        f"input_ids contains out-of-vocabulary token id {shown(bad)}; "
        f"valid range is [0, {limits.ids})."
    )


IDS = ValueRule("token ids in the vocabulary; not empty", _ids)


def _logprob_ids(name: str, value: Any, limits: BodyLimits) -> str | None:
    for row in value if value and isinstance(value[0], list) else [value]:
        for each in row:
            if not 0 <= each < limits.ids:
                return (
                    f"token_ids_logprob contains out-of-vocabulary token id {shown(each)}; "
                    f"valid range is [0, {limits.ids})."
                )
    return None


LOGPROB_IDS = ValueRule("token ids in the vocabulary", _logprob_ids)
