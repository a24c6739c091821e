"""What ELDR's own artifact measured, and why a simulated figure is another."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan


@dataclass(frozen=True)
class Measured:
    """TPOT ms at a rate of requests a second: shortest queue's and ELDR's, p50 and p99."""

    rate: float
    queue: tuple[float, float]
    eldr: tuple[float, float]

    @property
    def p50(self) -> float:
        return self.eldr[0] / self.queue[0]

    @property
    def p99(self) -> float:
        return self.eldr[1] / self.queue[1]


ANSWER = 512
"""Output tokens of each request."""
ARTIFACT: Mapping[tuple[str, str], tuple[Measured, ...]] = {
    ("Qwen3-30B-A3B", "task"): (
        Measured(20, (15.00, 16.32), (13.05, 15.54)),
        Measured(40, (19.77, 21.27), (16.39, 19.38)),
        Measured(60, (27.00, 27.55), (22.62, 25.58)),
        Measured(80, (25.58, 26.89), (23.56, 26.14)),
        Measured(100, (25.44, 26.16), (21.75, 24.71)),
    ),
    ("GPT-OSS-120B", "task"): (
        Measured(40, (38.87, 40.85), (31.73, 38.92)),
        Measured(60, (46.43, 48.13), (37.62, 46.33)),
        Measured(80, (51.81, 53.25), (43.24, 51.37)),
    ),
    ("Qwen3-30B-A3B", "language"): (
        Measured(40, (20.03, 21.39), (17.29, 20.38)),
        Measured(60, (27.08, 27.89), (23.78, 26.22)),
        Measured(80, (25.63, 26.97), (24.31, 27.23)),
        Measured(100, (25.86, 26.60), (22.90, 25.57)),
    ),
    ("GPT-OSS-120B", "language"): (
        Measured(60, (42.26, 44.47), (39.01, 46.59)),
        Measured(100, (52.32, 54.33), (48.49, 54.71)),
    ),
}
"""casys-kaist/ELDR, 8P16D on MI300X, single measurements. Of Gemma-4-26B-A4B it has no rows."""


def reason(ours: Mapping[str, float], measured: Measured) -> str:
    """In words, from the numbers: whether our TPOT p50 to shortest queue's (`p50`, with `p50_low`
    and `p50_high`) is what was measured, and if not, what of the step can be why. `distinct`:
    experts of a step to shortest queue's, `share`: of shortest queue's step that loading them
    takes, `queue_ms`: its TPOT p50 here."""
    if ours["p50_low"] <= measured.p50 <= ours["p50_high"]:
        return "not told apart from what was measured"
    more = "more" if ours["p50"] < measured.p50 else "less"
    alone = "one seed, no interval; " if isnan(ours["p50_low"]) else ""
    text = f"{alone}{more} gain here: {1 - ours['p50']:.1%} for {1 - measured.p50:.1%} there. "
    text += f"Loading experts is {ours['share']:.0%} of our step"
    fall = 1 - ours["distinct"]
    if fall > 0.01:
        implied = (1 - measured.p50) / fall
        text += f", and {fall:.0%} fewer are loaded; with that fall theirs would be {implied:.0%}"
        if implied > 1:
            text += ", so more must fall there than what a data sheet's step counts"
    slower = measured.queue[0] / ours["queue_ms"]
    return f"{text}. A step took {slower:.1f} times as long there"
