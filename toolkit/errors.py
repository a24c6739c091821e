"""What goes wrong, for people to read. One family: the command line knows its root alone."""

from __future__ import annotations

from dataclasses import dataclass


class ToolkitError(Exception):
    """Says what is wrong and how to mend it; the command line prints it without a traceback."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, what, and how to mend it."""

    where: str
    what: str
    repair: str = ""
    fatal: bool = True

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n    -> {self.repair}" if self.repair else head
