"""The tables of patches in the documents: what each is for, and what those bring that can be left
out."""

from __future__ import annotations

from typing import Any

from docs import reference


def needed() -> str:
    """The patches that a worker cannot do without, why, and where that is tested."""
    from patches.registry import ALL
    from tests.patch_tests import SHOWN

    rows = [(f"`{p.name}`", p.why, f"`{SHOWN[p.name]}`") for p in ALL if not p.gain]
    return "\n".join(reference.md_table(("patch", "without it", "tests"), rows))


def wrapping() -> str:
    """The symbols that several patches wrap: in which order, and why."""
    from patches.order import inner_first, wrapped_symbols
    from patches.registry import ALL

    rows = []
    for symbol, patches in sorted(wrapped_symbols(inner_first(ALL)).items()):
        here = {patch.name for patch in patches}
        order = " in ".join(f"`{patch.name}`" for patch in patches)
        why = [
            f"`{patch.name}` {word} `{name}`: {reason}"
            for patch in patches
            for word, said in (("around", patch.after), ("beside", patch.independent_of))
            for name, reason in said.items()
            if name in here
        ]
        if len(patches) > 1:
            rows.append((f"`{'.'.join(symbol.split('.')[-2:])}`", order, "; ".join(why)))
    return "\n".join(reference.md_table(("symbol", "innermost first", "why"), rows))


ABLATION = {
    "ttft": "TTFT p50", "tpot": "TPOT p50", "one": "one token p50", "throughput": "throughput"
}  # fmt: skip


def ablation() -> str:
    """What each patch that can be left out brings: the last record of `tests.benchmarks.ablation`
    that has it."""
    from patches.registry import ALL

    found: dict[str, Any] = {}
    for record in reference.records():
        if record["benchmark"] == "ablation":
            found |= {k: v for k, v in record["figures"].items() if isinstance(v, dict)}
    rows = []
    for patch in ALL:
        if patch.gain:
            figures = found.get(patch.name)
            cells = [_told(figures, name) for name in ABLATION]
            rows.append((f"`{patch.name}`", patch.gain, *cells))
    return "\n".join(reference.md_table(("patch", "for", *ABLATION.values()), rows))


def _told(figures: dict[str, Any] | None, name: str) -> str:
    if figures is None:
        return "not measured"
    low, high = figures[f"{name}_low"], figures[f"{name}_high"]
    if low is None:
        return f"{figures[name]:.2f}, one pair"
    told = "" if figures[f"{name}_told"] != "not told apart" else ", not told apart"
    return f"{figures[name]:.2f} ({low:.2f} to {high:.2f}){told}"
