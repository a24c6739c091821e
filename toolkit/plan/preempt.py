"""Whether best-effort prompts give way, by which policy and how often they are looked at."""

import math
from typing import Any

from toolkit.contract.preempting import Preempting, from_yaml
from toolkit.plan.candidate import Candidate
from toolkit.plan.knob import Knob
from toolkit.plan.objective import PlanSlo
from toolkit.settings.document import Document, get, put
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.of_deployment import layers_that_stop

OFF = "off"
POLICIES = ("strict", "fair@0.5", "fair@0.8")
DEADLINE = "deadline@0.01"
"""Where there is an SLO to keep."""
KEYS = ("prefill", "preempt")


def stoppable(own: Candidate) -> int:
    """Layers between which its prompts can be stopped; 0 where nobody knows."""
    try:
        return layers_that_stop(own.deployment, own.deployment.prefill)
    except SimulateError:
        return 0


def stopping(own: Candidate, slo: PlanSlo) -> list[Knob]:
    """`prefill.preempt.policy`, where `off` takes the key away, and `prefill.preempt.slice`; none
    where requests have no classes, or the model's layers are not known."""
    layers = stoppable(own) if own.deployment.router.classes is not None else 0
    if not layers:
        return []
    asked = own.deployment.prefill.preempt
    slices = {2**n for n in range(layers.bit_length()) if 2**n <= layers} | {layers}
    if asked is not None:
        slices.add(asked.slice)
    return [_policy(asked, layers, slo), _slice(tuple(sorted(slices)))]


def _read(document: Document) -> Preempting | None:
    found = get(document, *KEYS)
    return None if found is None else Preempting.model_validate(from_yaml(found))


def _policy(asked: Preempting | None, layers: int, slo: PlanSlo) -> Knob:
    given = asked or Preempting(slice=_first_slice(layers))
    limit = min(slo.urgent_ttft, slo.ttft)
    wanted = given.slo_s or (limit if math.isfinite(limit) else None)
    values = [OFF, *POLICIES]
    if wanted is not None:
        values.insert(2, DEADLINE)
    if given.policy not in values:
        values.append(given.policy)

    def read(document: Document) -> str:
        found = _read(document)
        return OFF if found is None else found.policy

    def write(document: Document, value: str) -> Document:
        if value == OFF:
            return put(document, KEYS, None)
        slo_s = wanted if value.startswith("deadline") else given.slo_s
        return _put(document, _read(document) or given, policy=value, slo_s=slo_s)

    return Knob("prefill.preempt.policy", tuple(values), read, write, ordered=False)


def _first_slice(layers: int) -> int:
    """Of a file that has none: about eight looks a prompt, from where the search goes on."""
    return 1 << (max(1, layers // 8).bit_length() - 1)


def _slice(values: tuple[int, ...]) -> Knob:
    def read(document: Document) -> int:
        found = _read(document)
        return 1 if found is None else found.slice

    def write(document: Document, value: int) -> Document:
        return _put(document, _read(document) or Preempting(), slice=value)

    return Knob("prefill.preempt.slice", values, read, write, lambda d: _read(d) is not None)


def _put(document: Document, rules: Preempting, **changes: Any) -> Document:
    """With these rules, the policy's name first, without what is the default anyway."""
    made = rules.model_copy(update=changes)
    return put(document, KEYS, {"policy": made.policy} | made.model_dump(exclude_defaults=True))
