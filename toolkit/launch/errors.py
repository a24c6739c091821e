"""Problems found before or while a deployment runs, each with the way to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, what, and how to mend it."""

    where: str
    what: str
    mend: str = ""
    fatal: bool = True

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n    -> {self.mend}" if self.mend else head


class LaunchError(Exception):
    """The deployment cannot start or could not go on. `problems` holds every reason."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        if isinstance(problems, str):
            problems = [Problem("", problems)]
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))
