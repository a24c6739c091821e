"""In which groups calibration prompts are sent.

A wave is sent at once and waited for. Waves of every size alternate, and waves of one label with
mixed ones, so that decode steps differ in batch size *and*, at the same size, in how many distinct
experts they use: without that a fit cannot tell the two apart.
"""

import random
from collections import defaultdict

from toolkit.profile.calibration_prompts import CalibrationPrompt

SIZES = (16, 8, 4, 2, 1)


def waves(prompts: list[CalibrationPrompt], most: int, seed: int) -> list[list[int]]:
    """Indices of `prompts`, each once, in waves of at most `most`. Deterministic for a seed."""
    draw = random.Random(seed)
    left: dict[str, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        left[prompt.cell].append(index)
    for cell in left.values():
        draw.shuffle(cell)
    sizes = [size for size in (most, *SIZES) if size <= most]
    sizes = list(dict.fromkeys(sorted(sizes, reverse=True)))
    made: list[list[int]] = []
    while any(left.values()):
        cycle, place = divmod(len(made), len(sizes))
        size = sizes[place]
        largest = max(left, key=lambda cell: len(left[cell]))
        alike = (cycle + place) % 2 == 1 and len(left[largest]) >= size
        made.append(
            [_take(left, draw, largest if alike else None) for _ in range(_fit(left, size))]
        )
    return made


def _fit(left: dict[str, list[int]], size: int) -> int:
    return min(size, sum(map(len, left.values())))


def _take(left: dict[str, list[int]], draw: random.Random, cell: str | None) -> int:
    if cell is None:
        names = [name for name, rest in left.items() if rest]
        cell = draw.choice(names)
    return left[cell].pop()
