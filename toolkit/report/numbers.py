"""Numbers as people read them, for the report page and the terminal."""

import math

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps"))
MISSING = "–"


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits without an exponent where that stays short."""
    if value is None or math.isnan(value):
        return MISSING
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 8:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - size)}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share of 1 in percent."""
    return MISSING if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def change(value: float | None, base: float | None, digits: int = 0) -> str:
    """`value` against `base` as a signed percentage, with a real minus sign."""
    if value is None or not base:
        return MISSING
    share = 100 * (value / base - 1)
    text = f"{abs(share):.{digits}f} %"
    if float(f"{abs(share):.{digits}f}") == 0:
        return "±0 %"
    return ("+" if share > 0 else "−") + text


def count(value: int) -> str:
    return f"{value:,}"


def quantity(value: float, unit: str) -> str:
    """A value with its unit; seconds (also per something) get the prefix that reads best."""
    head, _, rest = unit.partition("/")
    head, rest = head.strip(), rest.strip()
    if head != "s" or value == 0:
        return f"{number(value)} {unit}".rstrip()
    factor, name = next(((f, n) for f, n in _SECONDS if abs(value) >= f), _SECONDS[-1])
    return f"{number(value / factor)} {name}" + (f"/{rest}" if rest else "")


def spark(values: list[float]) -> str:
    """A line of block characters, the lowest value lowest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / span)] for value in values)


def plural(n: int, noun: str) -> str:
    return f"{count(n)} {noun}" + ("" if n == 1 else "s")
