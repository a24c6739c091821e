"""What goes wrong, for people to read. One family: the command line knows its root alone."""

from collections.abc import Sequence
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


class LaunchError(ToolkitError):
    """The deployment cannot start or could not go on. `problems` holds every reason."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        if isinstance(problems, str):
            problems = [Problem("", problems)]
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))
