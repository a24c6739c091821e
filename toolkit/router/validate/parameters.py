"""/generate's sampling parameters, which SGLang takes unchecked."""

from __future__ import annotations

from typing import Any

from toolkit.router.validate.declared import SAMPLING as PARAMETERS
from toolkit.router.validate.declared import missing, not_in_release
from toolkit.router.validate.endpoints import ENDPOINTS, SAMPLING
from toolkit.router.validate.field import Fate
from toolkit.router.validate.limits import BodyLimits
from toolkit.router.validate.private import is_ours, without_ours
from toolkit.router.validate.refusal import refusal, shown

MOST_BY_DEFAULT = 128
"""max_new_tokens of SGLang 0.5.21 when there is none."""
PER_PROMPT = tuple(name for name, row in ENDPOINTS["generate"].items() if row.each)
"""Fields that may hold one value for each prompt of a batch."""


def checked(params: dict[str, Any], limits: BodyLimits) -> dict[str, Any]:
    """What of one prompt's parameters may go to a worker.

    Raises:
        ApiError: 400, and which parameter is wrong.
    """
    good: dict[str, Any] = {}
    unknown = missing(PARAMETERS, limits.release)
    for name, value in params.items():
        field = SAMPLING.get(name)
        if field is None:
            if is_ours(name):
                continue
            raise refusal(
                f"Unexpected keyword argument {shown(name)} in sampling_params. Known are "
                f"{', '.join(key for key, row in SAMPLING.items() if row.policy is Fate.PASS)}."
            )
        if field.policy is not Fate.PASS:
            if field.asks_nothing(value):
                continue
            raise refusal(f"sampling_params.{name} is not a client's to set: {field.why}.")
        if name in unknown:
            if value is not None:
                raise refusal(f"sampling_params.{not_in_release(PARAMETERS, name, limits.release)}")
            continue
        if field.rule is not None and (value is not None or name == "n"):
            wrong = field.rule.wrong(name, value, limits)
            if wrong is not None:
                raise refusal(wrong)
        good[name] = without_ours(value, sglang=True) if name == "custom_params" else value
    least, most = good.get("min_new_tokens") or 0, good.get("max_new_tokens", MOST_BY_DEFAULT)
    if most is not None and least > most:
        raise refusal(f"min_new_tokens must be in [0, max_new_tokens({most})], got {least}.")
    return good


def checked_all(body: dict[str, Any], limits: BodyLimits) -> Any:
    """`sampling_params` of a body, one or one for each prompt; lists must fit the prompts.

    Raises:
        ApiError: 400.
    """
    text, ids, embeds = body.get("text"), body.get("input_ids"), body.get("input_embeds")
    if text is None and ids is None and not embeds:
        raise refusal("Either text, input_ids or input_embeds should be provided.")
    batch = _batch(text, ids, embeds)
    for name in PER_PROMPT:
        value = body.get(name)
        if not isinstance(value, list):
            continue
        if batch is None:
            raise refusal(f"{name} is a list, and there is only one prompt: give one value.")
        if len(value) != batch:
            raise refusal(f"{name} has {len(value)} values for {batch} prompts.")
    params = body.get("sampling_params")
    if isinstance(params, list):
        return [checked(each, limits) for each in params]
    return params if params is None else checked(params, limits)


def _batch(text: Any, ids: Any, embeds: Any) -> int | None:
    """How many prompts a batch has; None for a single prompt."""
    if text is not None:
        return len(text) if isinstance(text, list) else None
    if ids is not None:
        return len(ids) if isinstance(ids[0], list) else None
    first = embeds[0]
    return len(embeds) if first and isinstance(first[0], list) else None
