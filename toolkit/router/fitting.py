"""Whether a worker fits those that serve: KV of one means something to another only where both are
of one model and lay it out alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.contract.events import Hello

AUTO = "auto"
"""A type of KV that SGLang takes from the model: mostly the model's own, but a checkpoint may say
another."""


def why_other_model(hello: Hello, theirs: Hello, name: str) -> str | None:
    """Why a worker must not serve beside another one, `name`; None: they have one model, as far as
    both say."""
    mine, other = hello.fingerprint, theirs.fingerprint
    if not mine or not other or mine == other:
        return None
    return f"it serves another model than {name} ({mine} not {other})"


def why_other_layout(hello: Hello, theirs: Hello, name: str) -> str | None:
    """Why no KV can go between a worker and another one, `name`; None: it can, as far as both
    say."""
    for what, mine, other in (
        ("page_size", hello.page_size, theirs.page_size),
        ("disaggregation_transfer_backend", hello.transfer, theirs.transfer),
        ("kv_cache_dtype", *_kv_types(hello, theirs)),
    ):
        if mine and other and mine != other:
            return (
                f"its KV means nothing to {name}: it has {what} {mine}, {name} has {other}. Start "
                "all workers with the same"
            )
    return None


def _kv_types(hello: Hello, theirs: Hello) -> tuple[str, str]:
    """Those of both KV caches; empty where they cannot be compared, as only one is said."""
    unsaid = [each.kv_dtype in ("", AUTO) for each in (hello, theirs)]
    if all(unsaid):
        return hello.dtype, theirs.dtype
    return ("", "") if any(unsaid) else (hello.kv_dtype, theirs.kv_dtype)
