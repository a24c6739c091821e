"""One setting that is searched."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.settings.document import Document


def always(document: Document) -> bool:
    return True


@dataclass(frozen=True)
class Knob:
    """`values` that are tried; `read` finds its value in a deployment file, `write` gives a file
    that has another one. `applies`: whether it has any effect there (tau only with a locality
    band). `ordered`: values next to each other in the list are alike."""

    name: str
    values: tuple[Any, ...]
    read: Callable[[Document], Any]
    write: Callable[[Document, Any], Document]
    applies: Callable[[Document], bool] = always
    ordered: bool = True

    def others(self, document: Document, most: int) -> list[Any]:
        """At most so many values that the file does not have: the nearest ones where they are
        ordered, else the first."""
        now = self.read(document)
        left = [value for value in self.values if value != now]
        if not self.ordered or now not in self.values:
            return left[:most]
        place = {value: at for at, value in enumerate(self.values)}
        near = sorted(left, key=lambda value: (abs(place[value] - place[now]), place[value]))
        return near[:most]


def shown(value: Any) -> str:
    """A value as a user reads it."""
    if value is None:
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)
