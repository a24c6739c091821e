"""What the set-up prints: one line a step, with its time, and problems in plain words."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import Iterator

from toolkit.errors import ToolkitError


class SetupError(ToolkitError):
    """Something that the user must mend; the message says what and how."""


def line(text: str) -> None:
    """One line, at once: what follows may be another process's output."""
    print(f"setup: {text}", flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Announces a step and, when it has passed, says how long it took (seconds)."""
    line(f"{what} ...")
    start = time.monotonic()
    yield
    line(f"{what}: done in {time.monotonic() - start:.1f} s")


def problem(text: str) -> None:
    """A failure, on standard error, after everything already said."""
    sys.stdout.flush()
    print(f"\nsetup: cannot go on.\n{text}", file=sys.stderr, flush=True)
