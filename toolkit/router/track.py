"""Where one request has been: the workers it was sent to, and what came of that."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from toolkit.router.places import without_places_in

TRIES = 16
"""Of one request, the last ones; moves have no bound."""


@dataclass(slots=True)
class Try:
    """One call to a worker. `sent`: when, monotonic; `rid`: as the worker has it."""

    attempt: int
    worker: str
    dp_rank: int
    role: str
    rid: str
    sent: float


@dataclass(slots=True)
class Track:
    """Of one prompt and one continuation."""

    tries: deque[Try] = field(default_factory=lambda: deque(maxlen=TRIES))
    attempts: int = 0
    failures: deque[str] = field(default_factory=lambda: deque(maxlen=TRIES))
    """Why attempts ended without an answer, in the words of the log."""
    moves: int = 0
    first_token: float = 0.0
    """When the client was sent something first, monotonic; 0: it was not."""

    def sent(self, attempt: int, worker: str, dp_rank: int, role: str, rid: str) -> None:
        """A call to a worker begins."""
        self.tries.append(Try(attempt, worker, dp_rank, role, rid, monotonic()))
        self.attempts = max(self.attempts, attempt + 1)

    def told(self, now: float) -> None:
        """The client was sent something of an answer."""
        self.first_token = self.first_token or now

    def describe(self, arrived: float, admin: bool) -> dict[str, Any]:
        """In seconds since the request came. Ids and addresses of workers are the admin's."""
        return {
            "attempts": self.attempts,
            "moves": self.moves,
            "first_token_s": round(self.first_token - arrived, 4) if self.first_token else None,
            "tries": [
                {
                    "attempt": each.attempt,
                    "worker": each.worker,
                    "dp_rank": each.dp_rank,
                    "role": each.role,
                    "sent_s": round(each.sent - arrived, 4),
                    **({"rid": each.rid} if admin else {}),
                }
                for each in self.tries
            ],
            "failures": [each if admin else without_places_in(each) for each in self.failures],
        }
