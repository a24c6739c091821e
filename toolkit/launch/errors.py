"""Problems found before or while a deployment runs, each with the way to mend it."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.errors import Problem, ToolkitError

__all__ = ["LaunchError", "Problem"]


class LaunchError(ToolkitError):
    """The deployment cannot start or could not go on. `problems` holds every reason."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        if isinstance(problems, str):
            problems = [Problem("", problems)]
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))
