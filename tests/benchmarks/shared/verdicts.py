"""What simulated figures say beside published ones, in words that follow from the numbers."""

from collections.abc import Mapping
from math import isnan
from typing import Any

from toolkit.bench.stats import Ratio, paired_ratio


def changed(what: str, ratio: Mapping[str, float]) -> str:
    """One figure divided by the baseline's (`value`, `low`, `high`): rose, fell, neither seen."""
    value, low, high = ratio["value"], ratio["low"], ratio["high"]
    if isnan(low):
        return f"{what} x {value:.3f} (one seed: no interval)"
    text = f"({low:.3f} to {high:.3f})"
    if low <= 1 <= high:
        return f"no change of {what} seen {text}"
    return f"{what} {'falls' if high < 1 else 'rises'} to {value:.3f} {text}"


def beside(what: str, ratio: Mapping[str, float], paper: float) -> str:
    """The same against a published ratio of the figure."""
    if isnan(ratio["low"]):
        return f"{what}: one seed cannot be held against the paper's {paper:.3f}"
    if ratio["low"] <= paper <= ratio["high"]:
        return f"{what} is not told apart from the paper's {paper:.3f}"
    more = "more" if ratio["value"] < paper else "less"
    return f"{what} falls by {more} than in the paper ({paper:.3f})"


def larger_part(names: tuple[str, str], parts: tuple[list[float], list[float]]) -> str:
    """Which of two parts lowers a figure more, by seeds (`parts`: each one's figure)."""
    ratio: Ratio = paired_ratio(*parts)
    if isnan(ratio.low) or ratio.low <= 1 <= ratio.high:
        return f"which of {names[0]} and {names[1]} is the larger part is not told apart"
    first, second = names if ratio.high < 1 else names[::-1]
    return f"{first} is a larger part than {second}"


def by_branch(branches: Mapping[str, int]) -> str:
    """Shares of the rules by which engines were chosen, the most first."""
    total = sum(branches.values())
    shares = sorted(branches.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count / total:.0%}" for name, count in shares if count)


def within(
    even: Mapping[str, float], worst: Mapping[str, float], paper: Mapping[str, float]
) -> str:
    """What TPOT is between the worst placement and what none can be better than (both divided by
    the baseline's), and the published ratios beside that; `paper`: by whose they are."""
    told = f"no placement can take TPOT below {even['value']:.3f} (the worst one: "
    told += f"{worst['value']:.3f})"
    if isnan(even["low"]):
        return told
    for whose, ratio in paper.items():
        if ratio < even["low"]:
            told += f"; {whose} {ratio:.3f} is more than placement can do here, unless the order "
            told += f"before took {even['value'] / ratio:.3f} times as long"
        else:
            told += f"; {whose} {ratio:.3f} is within what placement can do here"
    return told


NOTHING_LESS_SENT = (
    "half of all pairs leave their GPU under every placement, since results return to the token's "
    "rank after each layer and requests are not sent by their experts: affinity between layers "
    "saves nothing"
)


def gimbal_reasons(
    figures: Mapping[str, Mapping[str, Any]],
    ttft: Mapping[str, list[float]],
    branches: Mapping[str, int],
    paper: Mapping[str, Any],
) -> dict[str, str]:
    """By part of Gimbal's ablation: what it changed, and what that says of the paper's words.

    `figures`: each part's ratios to the baseline; `ttft`: each part's mean TTFT, seed by seed;
    `paper`: `ttft` and `tpot` of all parts, `second` the second paper's TPOT. The paper says that
    engine selection is the larger part of what TTFT gains.
    """
    order = larger_part(
        ("engine selection", "shortest first"), (ttft["engine_selection"], ttft["shortest_first"])
    )
    said = "the paper: engine selection is the larger part"
    own = {
        part: ", ".join(changed(key.upper(), ratios[key]) for key in ("ttft", "tpot"))
        for part, ratios in figures.items()
    }
    every = figures["all"]
    published = {"the paper's": paper["tpot"], "the second paper's": paper["second"]}
    bounds = within(figures["even"]["tpot"], figures["worst"]["tpot"], published)
    return own | {
        "engine_selection": f"{own['engine_selection']}; {order} ({said}); engines were chosen by: "
        f"{by_branch(branches) or 'no decision'}",
        "shortest_first": f"{own['shortest_first']}; {order} ({said})",
        "expert_placement": f"{own['expert_placement']}; {bounds}; {NOTHING_LESS_SENT}",
        "all": f"{own['all']}; {beside('TTFT', every['ttft'], paper['ttft'])}; "
        f"{beside('TPOT', every['tpot'], paper['tpot'])}. SGLang's admission keeps KV free for "
        "answers, vLLM's does not",
    }
