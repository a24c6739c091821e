"""Many steps at once, whose times are a straight line of their number."""

import math


def seconds_of(steps: int, first: float, slope: float) -> float:
    """What so many steps take, the j-th of which (from 0) takes first + j * slope."""
    return steps * first + slope * steps * (steps - 1) / 2


def steps_in(seconds: float, first: float, slope: float) -> int:
    """How many of those whole steps fit in that time."""
    seconds = seconds * (1 + 1e-12) + 1e-12  # a boundary belongs to the step that ended there
    half = first - slope / 2
    inside = half * half + 2 * slope * seconds
    # The root in the form that loses nothing where the slope is tiny.
    return int(2 * seconds / (half + math.sqrt(max(inside, 0.0))))
