"""What patches keep, each by a class of its own: whoever holds it knows none of them.

A patch keeps its class in its own file, or beside it where several patches read it, and asks for
the one object of that class. So it imports whom it reads from, and nobody imports all of them.
"""

from typing import Any, TypeVar

Part = TypeVar("Part")


class StateByClass:
    """One object of each class that was asked for. Threads may ask, too."""

    def __init__(self) -> None:
        self.parts: dict[type[object], Any] = {}

    def get(self, kind: type[Part]) -> Part:
        """That of this class, made when it is first asked for."""
        part: Part | None = self.parts.get(kind)
        if part is None:
            # Of two threads that ask at once both get the same one.
            part = self.parts.setdefault(kind, kind())
        return part

    def find(self, kind: type[Part]) -> Part | None:
        """That of this class, if there is one: of what is made with arguments."""
        part: Part | None = self.parts.get(kind)
        return part

    def keep(self, part: Part) -> Part:
        """From now on it is that of its class."""
        self.parts[type(part)] = part
        return part
