"""What it hangs on whether experts are placed or moved, by the costs: sentences with figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.plan.arithmetic import ms, percent
from toolkit.plan.expert_layout import LINEAR, NODES

if TYPE_CHECKING:
    from toolkit.bench.suite.question import Subject
    from toolkit.plan.arithmetic import Arithmetic
    from toolkit.plan.expert_layout import Lay, Layouts

NAMES = {
    LINEAR: "in order",
    "eplb": "by load",
    "joint": "by the profile's tokens",
    NODES: "laid with requests",
}


def about(system: Subject, there: Arithmetic, layouts: Layouts, lays: Sequence[Lay]) -> str:
    """`there`: of the deployment whose experts lie in their order; `lays`: of the arms."""
    if system == "relocated experts":
        moved = [_moved(there, layouts, lay) for lay in lays if lay.every is not None]
        return "; ".join(dict.fromkeys(moved))
    kinds = {lay.kind: lay for lay in lays if lay.every is None}
    found = {
        name: there.laid(layouts.of(kinds[kind])) for kind, name in NAMES.items() if kind in kinds
    }
    first = found[NAMES[LINEAR]]
    uneven = ", ".join(f"{laid.uneven:.2f} {name}" for name, laid in found.items())
    sent = percent(first.sent_s, first.step_s)
    return (
        f"of the experts that a step loads, the busiest of {layouts.topology.gpus} GPUs has so "
        f"many times the mean: {uneven}; the all-to-all is {sent} of a step of "
        f"{ms(first.step_s)}"
    )


def _moved(there: Arithmetic, layouts: Layouts, lay: Lay) -> str:
    assert lay.every is not None
    assert layouts.moving is not None and layouts.expert_bytes is not None
    sent, _ = layouts.copied(lay)
    while_s = lay.every * there.laid(layouts.of(lay)).step_s
    taken = layouts.moving_s(lay)
    who = "EPLB" if lay.engine else "toolkit relocate"
    return (
        f"every {lay.every:,} steps, in which a server answers {lay.seen:,} requests, {who} sends "
        f"{sent * layouts.expert_bytes / 1e9:,.1f} GB in {ms(taken)} "
        f"({layouts.moving.bytes_per_s / 1e9:g} GB/s), "
        f"{percent(taken, while_s)} of these steps' time"
    )
