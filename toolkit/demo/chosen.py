"""What the demo asks: one of the project's own prompts from each of a few domains."""

from collections.abc import Iterable
from typing import Any

SHOWN = (("code", "en"), ("math", "zh"), ("medical", "ru"), ("legal", "fr"))


def choose(prompts: Iterable[Any], count: int = len(SHOWN)) -> list[Any]:
    """The first prompt of each (domain, language) in SHOWN, then others, `count` in all."""
    everything = list(prompts)
    chosen: list[Any] = []
    for wanted in SHOWN:
        fits = (p for p in everything if (p.domain, p.language) == wanted and p not in chosen)
        chosen += [prompt for prompt in [next(fits, None)] if prompt is not None]
    chosen += [prompt for prompt in everything if prompt not in chosen]
    return chosen[:count]


def shortened(text: str, width: int = 240) -> str:
    """On one line, cut in the middle, where the end is what the model continues."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    half = (width - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"
