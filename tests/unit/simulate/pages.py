"""A small simulation's report."""

from tests.unit.simulate.fleets import COST, fleet, requests
from toolkit.simulate.page import render
from toolkit.simulate.session import SimulationSetting, run
from toolkit.simulate.workloads.classes import with_classes

ARMS = ("level", "br0@0", "composed@filter+level@0+user", "round_robin")


def classed() -> str:
    """Of requests that have classes."""
    setting = SimulationSetting(
        fleet({"slots": 16}, {"classes": True}),
        COST,
        lambda seed: with_classes(requests(150, 20.0, seed), 0.3, seed),
        ARMS[:2],
        seeds=2,
        slo=(0.1, 0.1),
    )
    return render(run(setting), "classes", "One decode rank.")


def page(dp: int = 4, title: str = "sample", seconds: float = 30.0) -> str:
    made = fleet({"dp": dp, "dp_attention": True, "slots": 8, "kv_tokens": 9000})
    rate = 5.0 * dp
    count = int(rate * seconds)
    setting = SimulationSetting(made, COST, lambda seed: requests(count, rate, seed), ARMS, seeds=2)
    return render(run(setting), title, f"{dp} decode ranks with DP attention.")
