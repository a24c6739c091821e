"""What is known of a prefill while its request waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.policies.base import RequestView


@dataclass(slots=True)
class PrefillFacts:
    """What is known of an attempt's prefill. `view`: of the request, with what the prefill found
    out; `counted`: that has its true number of tokens. `told_at`: when the decider was told that
    the prefill is done or, then before `done_at`, nearly. `posted_at`: when its worker got it."""

    view: RequestView
    counted: bool = False
    posted_at: float = 0.0
    told_at: float = 0.0
    done_at: float = 0.0
