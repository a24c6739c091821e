"""One line of the doctor's report."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Finding:
    """`missing` keeps the CPU demo from running, `note` does not; `repair`: what to do about it."""

    topic: str
    level: Level
    what: str
    repair: str = ""


def judged(topic: str, good: bool, what: str, repair: str, bad: Level = "missing") -> Finding:
    """`ok` when `good`, else `bad` with what to do about it."""
    return Finding(topic, "ok", what) if good else Finding(topic, bad, what, repair)
