"""Step times as a profile measured them on the target hardware."""

from pathlib import Path

from toolkit.profile_folder import store
from toolkit.profile_folder.schema import LinearFit
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost
from toolkit.simulate.errors import SimulateError


def of_profile(folder: str | Path) -> Linear:
    """The profile's fits: a decode step with its distinct experts (without them where the profile
    has no such fit), a prefill step, KV transfer.

    They were fitted on ranks that took their steps alone. SimulateError: the profile has no fit of
    decode or prefill steps. ProfileError: it is none, or damaged.
    """
    profile, _ = store.read(folder)
    latency = profile.latency
    step = latency.distinct or latency.without_distinct
    if step is None or latency.prefill is None:
        what = "decode" if step is None else "prefill"
        raise SimulateError(
            f"{folder} has no fit of {what} steps ({latency.note or 'too few were logged'}): "
            "measure more requests, or give coefficients (--cost FILE.yaml)"
        )
    names = {
        "1": "base",
        "requests": "per_request",
        "kv tokens": "per_kv_token",
        "distinct experts": "per_distinct",
    }
    given = _coefficients(latency.prefill)
    moved = profile.transfer
    return Linear(
        accepted=latency.accepted,
        decode=Decode(**{names[term]: value for term, value in _coefficients(step).items()}),
        prefill=Prefill(
            base=given["1"],
            per_token=given["new tokens"],
            per_pair=given.get("new tokens x kv tokens", 0.0),
        ),
        transfer=TransferCost()
        if moved is None
        else TransferCost(
            base=moved.latency_ms / 1e3,
            per_token=moved.bytes_per_token / (moved.bandwidth_gb_s * 1e9),
        ),
    )


def _coefficients(fit: LinearFit) -> dict[str, float]:
    return dict(zip(fit.terms, fit.coefficients, strict=True))
