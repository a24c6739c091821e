"""Which systems can pay on fleets that nobody here has: `toolkit plan --systems`, case by case.

Step times are NVIDIA's measured kernels (`pip install aiconfigurator-core`), H200, with even
lengths; in one case with what Triton's attention took more for mixed ones on our H200. NVIDIA's
data has no all-to-all of wide servers, so none is among the cases. A case is a recipe that ships,
or one with another split, at a fixed number of requests in flight for each decode rank. Prompts
(median 1,000 tokens) and answers (350) have long tails; a fifth of the requests are
latency-sensitive, the others best-effort. DeepSeek-V3 has its MTP layer, asked once, and steps give
1.85 tokens (`speculation_simulated`).

Which experts requests use is not public for these models. It is taken as in `eldr_simulated`: the
embedded model's requests, thinned and blended until a batch of one domain activates 19 % fewer
experts than a mixed one, which is what ELDR reports of large models. So expert locality here
answers: does it pay where traffic is as alike as published.

Experts of a server with expert parallelism are asked about by themselves (`shared/placed_fleets`):
with synthetic routing, as the embedded model has too few experts to say how uneven GPUs of a large
one are, DeepSeek-V3 without its draft and by published kernels with DeepEP's table, on one node and
on four. Once for traffic that stays, and for moving them once more for traffic that becomes
another's.

`check`: NVIDIA's kernel beside our own GPU point, for an expert of a layer at a batch of 64 (an
H100, results/gpu/experts.json), in microseconds.

keys: `cases`: for each the plan's answers (`ratio` decides, `price_ratio` is beside it, both with
intervals over seeds) and what was left out; `check`.
"""

import json
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.eldr_simulated import EMBEDDED_USED, FEWER, TASKS
from tests.benchmarks.shared.common import RESULTS, Result, arguments
from tests.benchmarks.shared.eldr_blend import Blend
from tests.benchmarks.shared.eldr_rows import MOST, of_profile
from tests.benchmarks.shared.placed_fleets import (
    DRIFT,
    NVLINK,
    PlacedFleet,
    SpreadExperts,
    asked,
    deepseek,
)
from toolkit.plan.candidate import Given
from toolkit.plan.planner import Task
from toolkit.plan.systems import answer
from toolkit.resources import recipes_dir
from toolkit.settings.yaml_lines import read_document
from toolkit.simulate.costs.aic import Aic, AicSpec
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.costs.wrapped import Wrapped
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.of_draft import DraftCosts
from toolkit.simulate.request import Request
from toolkit.simulate.workloads.classes import with_classes
from toolkit.simulate.workloads.traffic import RequestKind, TrafficModel, generate, mixed

if TYPE_CHECKING:
    import numpy as np

MEASURES = ("toolkit/plan", "toolkit/simulate", "toolkit/policies", "toolkit/bench/suite")
KIND = RequestKind(name="", share=1, prompt=(1000.0, 1.0), answer=(350.0, 0.8))
LONGEST = (16_000, 2_000)
LS_SHARE = 0.2
CAPTURE = 0.02
ROUNDS = 5
"""How often every place is taken."""
WIDE_NODES = 4
WIDE = f"DeepSeek-V3's decode on {WIDE_NODES} x 8 x H800"
QWEN_EXPERT = 3 * 4096 * 1536
"""Bytes of an expert of Qwen3-235B-A22B-FP8."""
MEASURED_LAYERS = 8
"""Of the model with which our GPU point was measured."""
DENSE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 80,
    "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8,
    "intermediate_size": 28672, "vocab_size": 128256,
}  # fmt: skip


@dataclass(frozen=True)
class Fleet:
    """`kv_tokens`, `in_flight`: of a decode rank; `changes`: of the recipe's file, by section;
    `accepted`: tokens that a step gives with the recipe's draft, where it has one."""

    recipe: str
    spec: AicSpec
    kv_tokens: int
    in_flight: int
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dense: bool = False
    accepted: float | None = None


def _dp(ranks: int, replicas: int = 1) -> dict[str, Any]:
    """One server of so many DP ranks, on nodes of 8 GPUs."""
    nodes = max(1, ranks // 8)
    return {
        "replicas": replicas,
        "tp": ranks,
        "dp": ranks,
        "ep": ranks,
        "nodes": nodes,
        "hosts": None,
    }


CASES = {
    "Qwen3-30B-A3B on 8 x H200": Fleet(
        "qwen3-30b-a3b-8gpu",
        AicSpec(model="Qwen/Qwen3-30B-A3B", moe_layers=48, experts=128, top_k=8, kv_bytes=98_304),
        kv_tokens=650_000,
        in_flight=48,
    ),
    "Qwen3-30B-A3B on 8 x H200, Triton's attention": Fleet(
        "qwen3-30b-a3b-8gpu",
        AicSpec(
            model="Qwen/Qwen3-30B-A3B", moe_layers=48, experts=128, top_k=8, kv_bytes=98_304,
            mixed=48 * 1.0e-8,
        ),
        kv_tokens=650_000,
        in_flight=48,
    ),
    "Qwen3-235B-A22B on 2 x 8 x H200": Fleet(
        "qwen3-235b-2x8",
        AicSpec(
            model="Qwen/Qwen3-235B-A22B-FP8", tp=4, ep=4, moe_layers=94, experts=128, top_k=8,
            kv_bytes=192_512,
        ),
        kv_tokens=1_200_000,
        in_flight=48,
    ),
    "GPT-OSS-120B on 8 x H200": Fleet(
        "gpt-oss-120b-8gpu",
        AicSpec(model="openai/gpt-oss-120b", moe_layers=36, experts=128, top_k=4, kv_bytes=73_728),
        kv_tokens=800_000,
        in_flight=48,
    ),
    "DeepSeek-V3 on 2 x 8 x H200": Fleet(
        "deepseek-v3-multinode",
        AicSpec(
            model="deepseek-ai/DeepSeek-V3", dp=8, ep=8, moe_layers=58, experts=256, top_k=8,
            kv_bytes=70_272, quantisation={"fmha_quant_mode": "bfloat16"},
        ),
        kv_tokens=400_000,
        in_flight=48,
        changes={
            "prefill": {**_dp(8), "args": {"chunked-prefill-size": 65_536}},
            "decode": {**_dp(8), "max_running": 1024, "args": {}},
        },
        accepted=1.85,
    ),
    "Llama-3.1-70B (dense) on 8 x H200": Fleet(
        "qwen3-30b-a3b-8gpu",
        AicSpec(model="meta-llama/Meta-Llama-3.1-70B", tp=2, kv_bytes=327_680),
        kv_tokens=350_000,
        in_flight=32,
        changes={"prefill": {"replicas": 1, "tp": 2}, "decode": {"replicas": 3, "tp": 2}},
        dense=True,
    ),
}  # fmt: skip


class Thinned(Wrapped):
    """NVIDIA's costs of a model with more experts than are simulated: a share of the simulated ones
    is the same share of the model's."""

    def __init__(self, cost: Aic, experts: SimulatedExperts) -> None:
        super().__init__(cost)
        entries = experts.layers * experts.experts
        self._more = cost.spec.moe_layers * cost.spec.experts / entries

    def decode_s(
        self,
        requests: "np.ndarray",
        kv_tokens: "np.ndarray",
        distinct: float,
        longest: "np.ndarray | None" = None,
    ) -> float:
        """As the model's costs."""
        return self._cost.decode_s(requests, kv_tokens, distinct * self._more, longest)


def document(case: Fleet, folder: Path) -> dict[str, Any]:
    """The recipe's file with the case's changes, and a profile to ask for."""
    found, _ = read_document(recipes_dir() / f"{case.recipe}.yaml")
    for placed in ("hosts", "base_port"):
        found.pop(placed, None)
    found["router"] = {**found["router"], "profile": "embedded"}
    found["router"].pop("node", None)
    for name, changes in case.changes.items():
        found[name] = {**found[name], **changes}
    for name in ("prefill", "decode"):
        for placed in ("hosts", "nodes"):
            found[name].pop(placed, None)
    if case.dense:
        (folder / "config.json").write_text(json.dumps(DENSE))
        found["model"] = {"path": str(folder)}
    return found


def machine(case: Fleet) -> tuple[CostModel, SimulatedExperts | None]:
    """What its steps take, and which experts requests use: as alike as ELDR reports; None of a
    dense model."""
    spec = case.spec
    cost = Aic(spec)
    if case.dense:
        return cost, None
    blend = Blend(of_profile(), TASKS, MOST, spec.top_k / spec.experts / EMBEDDED_USED)
    experts = blend.experts(blend.as_special(FEWER["task"]))
    return Thinned(cost, experts), experts


def arriving(ranks: int, in_flight: int, seed: int) -> Iterator[Request]:
    """So many that every place is taken ROUNDS times, with their classes."""
    count = ROUNDS * ranks * in_flight
    traffic = TrafficModel(
        rate=100.0, seconds=2 * count / 100.0, kinds=mixed(TASKS, KIND), longest=LONGEST
    )
    made = with_classes(generate(traffic, seed), LS_SHARE, seed)
    return (each for each, _ in zip(made, range(count), strict=False))


def played(case: Fleet, seeds: int, folder: Path) -> dict[str, Any]:
    """The plan's answers for a case."""
    cost, experts = machine(case)
    file = document(case, folder)
    decode = file["decode"]
    ranks = decode.get("replicas", 1) * (decode.get("dp", 1) if decode.get("dp_attention") else 1)
    task = Task(
        file,
        Given(recipes_dir(), kv_tokens=case.kv_tokens, draft=DraftCosts(case.accepted)),
        cost,
        lambda seed: arriving(ranks, case.in_flight, seed),
        seeds=seeds,
        experts=experts,
        budget=10_000,
        in_flight=ranks * case.in_flight,
    )
    return answer(task, CAPTURE, lambda text: None).to_json()


def placed(case: Fleet, folder: Path) -> PlacedFleet | None:
    """Of its experts; None where each rank has all of them."""
    file = document(case, folder)
    if case.spec.ep < 2:
        return None
    if case.spec.dp > 1:
        return deepseek(file, 1)
    replicas = file["decode"].get("replicas", 1)
    return PlacedFleet(
        *(file, SpreadExperts(Aic(case.spec))),
        gpus=case.spec.ep,
        experts=case.spec.experts,
        ranks=replicas,
        in_flight=case.in_flight,
        kv_tokens=case.kv_tokens,
        weight=QWEN_EXPERT,
        layers=case.spec.moe_layers,
        redundant=0,
        rate=case.spec.ep * NVLINK,
    )


def wide(folder: Path) -> PlacedFleet:
    """DeepSeek-V3's decode over several nodes."""
    return deepseek(document(CASES["DeepSeek-V3 on 2 x 8 x H200"], folder), WIDE_NODES)


def told_of(fleet: PlacedFleet, seeds: int) -> tuple[dict[str, Any], dict[str, str], int]:
    """Answers and what was left out by system, and the simulations that it took."""
    stays, drifts = asked(fleet, seeds), asked(fleet, seeds, DRIFT)
    answers, left = _by_system(stays.to_json())
    other, more = _by_system(drifts.to_json())
    words = f", if traffic becomes another's in {DRIFT:,} steps"
    answers |= {f"{system}{words}": row for system, row in other.items()}
    left |= {f"{system}{words}": why for system, why in more.items()}
    return answers, left, stays.simulations + drifts.simulations


def _by_system(found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    answers = {each.pop("system"): each for each in found["answers"]}
    return answers, {each["system"]: each["why"] for each in found["left_out"]}


def check() -> dict[str, float]:
    """An expert of a layer at a batch of 64: NVIDIA's kernel and our own point, microseconds."""
    spec = AicSpec(
        model="Qwen/Qwen3-30B-A3B", system="h100_sxm", moe_layers=48, experts=128, top_k=8,
        kv_bytes=98_304,
    )  # fmt: skip
    kernel = Aic(spec)._at(64, 1024).moe
    loaded = spec.experts * (1 - (1 - spec.top_k / spec.experts) ** 64)
    measured = json.loads((RESULTS / "gpu" / "experts.json").read_text())["figures"]["cells"]
    few, many = (
        next(each for each in measured if each["batch"] == 64 and each["prompts"] == prompts)
        for prompts in (8, 32)
    )
    more = (many["step_ms"] - few["step_ms"]) / (many["distinct"] - few["distinct"])
    return {
        "kernel_us": 1e6 * kernel / spec.moe_layers / loaded,
        "measured_us": 1e3 * more / MEASURED_LAYERS,
    }


def told(name: str, seeds: int, folder: Path) -> tuple[dict[str, Any], int]:
    """What is said of a case, and the simulations that it took."""
    answers: dict[str, Any] = {}
    left: dict[str, str] = {}
    fleet: PlacedFleet | None = None
    simulations = 0
    if name == WIDE:
        fleet = wide(folder)
    else:
        found = played(CASES[name], seeds, folder)
        simulations = found["simulations"]
        answers, left = _by_system(found)
        fleet = placed(CASES[name], folder)
    if fleet is not None:
        more, more_left, taken = told_of(fleet, seeds)
        simulations += taken
        left = {system: why for system, why in (left | more_left).items() if system not in more}
        answers |= more
    return {"answers": answers, "left_out": left}, simulations


def main() -> None:
    """Run the benchmark, print its tables and its line."""
    import tempfile

    options = arguments(
        __doc__,
        ("--seeds", {"type": int, "default": 4}),
        ("--only", {"choices": [*CASES, WIDE], "help": "this case alone"}),
    )
    if options.quick:
        options.seeds, options.only = 3, options.only or next(iter(CASES))
    result = Result()
    cases: dict[str, Any] = {}
    simulations = 0
    for name in (*CASES, WIDE):
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="systems-") as folder:
                cases[name], played_now = told(name, options.seeds, Path(folder))
            simulations += played_now
            print(f"{name}: {json.dumps(cases[name], indent=1)}", file=sys.stderr, flush=True)
    result.keys |= {"cases": cases, "check": check(), "seeds": options.seeds}
    result.emit(samples=simulations)


if __name__ == "__main__":
    main()
