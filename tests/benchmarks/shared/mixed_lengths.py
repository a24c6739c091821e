"""What mixed lengths in one batch cost, for simulated machines."""

from collections.abc import Sequence


def mixed_of(factor: float, per_kv_token: float, lengths: Sequence[int]) -> float:
    """The `mixed` of `Decode` with which attention over a batch of these lengths takes `factor`
    times as long as over even ones of the same total. ValueError: a factor below 1, or lengths
    that are all the same."""
    if factor < 1:
        raise ValueError(
            f"mixed lengths cannot make attention faster: factor {factor:g} is below 1"
        )
    total = sum(lengths)
    above = max(lengths) - total / len(lengths)
    if above <= 0:
        raise ValueError("these lengths are all the same: no batch of them is a mixed one")
    return (factor - 1) * per_kv_token * total / above
