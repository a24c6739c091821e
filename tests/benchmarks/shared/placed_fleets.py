"""Fleets whose experts lie on several GPUs: what `toolkit plan --systems` says of placing and
moving them.

Which experts tokens use is synthetic (`wide_server.drawn`, as specialised as ELDR reports), as no
model of these sizes is here: placements are fitted to one half of the requests, simulated ones
follow the other half. An expert of a simulated layer stands for those of several real ones.
Weights move at the nominal speed of the links, all GPUs together, which is the best for who sends
most.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from tests.benchmarks.shared.node_step import EXPERT
from tests.benchmarks.shared.wide_server import LAYERS, REDUNDANT, WHOLE, cost, drawn, even
from toolkit.placement import Topology
from toolkit.plan.candidate import Given
from toolkit.plan.expert_layout import Layouts, RelocationCost
from toolkit.plan.fitted_requests import FittedRequests
from toolkit.plan.placed_arms import SUBJECTS
from toolkit.plan.planner import Task
from toolkit.plan.systems import SystemsPlanned, answer
from toolkit.profile_folder import store
from toolkit.resources import profiles_dir, recipes_dir
from toolkit.simulate.costs.aic import Aic
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.costs.wrapped import Wrapped
from toolkit.simulate.request import Request
from toolkit.simulate.workloads.traffic import RequestKind, TrafficModel, generate

if TYPE_CHECKING:
    import numpy as np

DRIFT = 10_000
"""Decode steps in which traffic becomes another's, where it does: an assumption."""
NVLINK, NETWORK = 450e9, 50e9
"""Bytes a second of a GPU, one way: H200's NVLink, a 400 Gb/s card. Nominal."""
KIND = RequestKind(name="", share=1, prompt=(1000.0, 1.0), answer=(350.0, 0.8))
LONGEST = (16_000, 2_000)
ROUNDS = 3
"""How often every place is taken."""
CAPTURE = 0.02


@dataclass(frozen=True)
class PlacedFleet:
    """`gpus`: of a decode server; `experts`: of a layer; `ranks`: of all decode servers;
    `in_flight`, `kv_tokens`: of a rank; `weight`: bytes of an expert of a layer; `layers`: of the
    model; `redundant`: experts of a layer; `rate`: bytes a second of all GPUs of a server."""

    file: Mapping[str, Any]
    cost: CostModel
    gpus: int
    experts: int
    ranks: int
    in_flight: int
    kv_tokens: int
    weight: float
    layers: int
    redundant: int
    rate: float


class SpreadExperts(Wrapped):
    """NVIDIA's costs, which are of tokens that spread evenly over all GPUs, where the busiest GPU
    loads `distinct` experts: its kernel is as much longer as `Aic` says of one with as many more,
    each GPU having a base of its own."""

    def __init__(self, cost: Aic) -> None:
        super().__init__(cost)
        self._spec = cost.spec

    def decode_s(
        self,
        requests: "np.ndarray",
        kv_tokens: "np.ndarray",
        distinct: float,
        longest: "np.ndarray | None" = None,
    ) -> float:
        """`distinct`: of `LAYERS` layers."""
        spec = self._spec
        all_ = spec.experts * (1 - (1 - spec.top_k / spec.experts) ** int(requests.sum()))
        base = spec.distinct_base
        longer = (base + distinct / LAYERS) / (base + all_ / spec.ep)
        asked = (longer * (base + all_) - base) * spec.moe_layers
        return self._cost.decode_s(requests, kv_tokens, asked, longest)


def deepseek(file: Mapping[str, Any], nodes: int) -> PlacedFleet:
    """DeepSeek-V3's decode on so many nodes of 8 GPUs, without its draft, by published kernels
    (`wide_server.cost`)."""
    gpus = nodes * 8
    decode = {"replicas": 1, "tp": gpus, "dp": gpus, "ep": gpus, "dp_attention": True}
    args = {"moe-a2a-backend": "deepep", "ep-num-redundant-experts": REDUNDANT}
    made = {**file, "decode": {**decode, "max_running": 64 * gpus, "args": args}}
    made.pop("speculative", None)
    return PlacedFleet(
        *(made, cost(gpus)),
        gpus=gpus,
        experts=256,
        ranks=gpus,
        in_flight=24,
        kv_tokens=400_000,
        weight=EXPERT,
        layers=WHOLE,
        redundant=REDUNDANT,
        rate=gpus * (NVLINK if nodes == 1 else NETWORK),
    )


def asked(fleet: PlacedFleet, seeds: int, drift: int | None = None) -> SystemsPlanned:
    """Both questions; where traffic drifts only whether moving pays."""
    none, fitted, by_gpu = drawn(fleet.gpus, 0, fleet.experts)
    layouts = Layouts(
        none,
        *store.read(profiles_dir() / "embedded"),  # nothing is fitted to it
        Topology(fleet.gpus, min(fleet.gpus, 8)),
        near=True,
        moving=RelocationCost(drift, fleet.rate),
        expert_bytes=fleet.weight * fleet.layers / LAYERS,
        fitted=FittedRequests(even(fitted), fitted, by_gpu),
    )
    task = Task(
        dict(fleet.file),
        Given(recipes_dir(), kv_tokens=fleet.kv_tokens),
        fleet.cost,
        lambda seed: arriving(fleet.ranks * fleet.in_flight, seed),
        seeds=seeds,
        experts=none,
        budget=10_000,
        in_flight=fleet.ranks * fleet.in_flight,
        layouts=layouts,
    )
    return answer(task, CAPTURE, subjects=SUBJECTS if drift is None else SUBJECTS[:1])


def arriving(flying: int, seed: int) -> Iterator[Request]:
    """So many that every place is taken ROUNDS times."""
    traffic = TrafficModel(
        rate=100.0, seconds=2 * ROUNDS * flying / 100.0, kinds=(KIND,), longest=LONGEST
    )
    return islice(generate(traffic, seed), ROUNDS * flying)
