"""Where experts lie, as knobs: legal values, their memory, what moving costs, what is written."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.present import present
from tests.unit.profile import sample
from toolkit.cli.main import app
from toolkit.placement import Topology, linear, load_placement
from toolkit.placement.online import Cost
from toolkit.plan.candidate import Candidate, Given
from toolkit.plan.errors import PlanError
from toolkit.plan.expert_layout import Lay, Layouts, Memory, RelocationCost, bare, lay_of
from toolkit.plan.objective import PlanSlo
from toolkit.plan.placing import layouts_of, placing, remarks, why_not_moved, why_not_nodes
from toolkit.plan.search import Search
from toolkit.plan.space import searched
from toolkit.plan.split import split_of
from toolkit.plan.trials import Trials
from toolkit.relocate.pace import MOST, ORDER_S
from toolkit.settings.deployment import Deployment
from toolkit.settings.document import Document, normal, put
from toolkit.signatures.space import SignatureSpace
from toolkit.simulate.costs.linear import Decode, Linear, Prefill
from toolkit.simulate.costs.links import Link, Links
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.workloads.traffic import azure_like, generate

PROFILE, ARRAYS = sample.build(sample.Size(requests=90, layers=3, experts=16, top_k=2, gpus=4))
TOPOLOGY = Topology(4, 2)
MEMORY = Memory(expert=3000.0, kv_token=10.0)
FAR = Link(base=0.0, per_node_byte=0.0, per_byte=1e-7, element_bytes=2)
LINKED = Linear(
    decode=Decode(base=0.001, per_request=1e-5),
    prefill=Prefill(base=0.001, per_token=1e-7),
    links=Links(hidden=1000, gpus_per_node=2, dispatch=FAR, combine=FAR, replicas="nearest"),
)
"""Nothing but what crosses nodes takes time."""


def experts() -> SimulatedExperts:
    return SimulatedExperts(
        ARRAYS["decode_counts"],
        ARRAYS["output_tokens"],
        ARRAYS["prefill_counts"],
        SignatureSpace(ARRAYS["idf"], PROFILE.rho.mask),
        held_out=ARRAYS["held_out"],
    )


def document(**decode: Any) -> Document:
    role = {"tp": 4, "dp": 4, "ep": 4, "dp_attention": True, "kv_tokens": 40_000, "max_running": 64}
    role |= {"args": {"moe-a2a-backend": "deepep"}} | decode
    router = {"decode_policy": "shortest_queue", "profile": "embedded", "dispatch": "late"}
    return normal(
        {
            "name": "wide",
            "device": "cuda",
            "model": "embedded",
            "prefill": {},
            "decode": role,
            "router": router,
        }
    )


def layouts(**changes: Any) -> Layouts:
    made = Layouts(experts(), PROFILE, ARRAYS, TOPOLOGY, near=True, memory=MEMORY, expert_bytes=1e6)
    return replace(made, **changes)


def candidate(made: Document) -> Candidate:
    return Candidate.of(made, Given())


OWN = candidate(document())


def knobs(own: Candidate = OWN, **changes: Any) -> dict[str, Any]:
    return {knob.name: knob for knob in placing(own, layouts(**changes))}


def test_values_are_those_that_sglang_can_load() -> None:
    found = knobs(moving=RelocationCost(5000))
    assert found["experts"].values == ("linear", "eplb", "joint", "nodes")
    assert found["redundant experts"].values == (0, 4, 8, 16)
    for count in found["redundant experts"].values:
        TOPOLOGY.slots(16, count)
    assert found["relocate every"].values == ("off", 1000, 3000, 10_000, 30_000)
    # Six GPUs need 2 redundant experts at least.
    six = replace(layouts(), topology=Topology(6, 3))
    least = {knob.name: knob for knob in placing(OWN, six)}["redundant experts"].values
    assert (least[1:] == (2, 8, 14, 26) and least[0] == OWN.lay.redundant) or least[0] == 2


def test_redundant_experts_take_kv_tokens() -> None:
    knob = knobs()["redundant experts"]
    made = candidate(knob.write(OWN.document, 8))
    # Two more slots on each of 4 GPUs, of 3,000 bytes each, at 10 bytes a token.
    assert made.fleet.decode.kv_tokens == 40_000 - 600
    assert made.lay.redundant == 8 == knob.read(made.document)
    assert made.deployment.decode.args["ep-num-redundant-experts"] == 8
    back = candidate(knob.write(made.document, 0))
    assert back.document == OWN.document and back.fleet == OWN.fleet
    scarce = knobs(memory=Memory(expert=3e5, kv_token=10.0))["redundant experts"]
    assert scarce.values == (0, 4), "no KV would be left"
    assert "redundant experts" not in knobs(memory=None)
    said = remarks(OWN, layouts(memory=None), OWN)
    assert any("redundant experts are not searched" in words for words in said)
    assert any("8, for which the KV pool" in words for words in remarks(OWN, layouts(), made))


def test_what_is_simulated_can_be_launched() -> None:
    placed = knobs()["experts"]
    made = candidate(placed.write(OWN.document, "nodes"))
    assert made.lay == Lay("nodes")
    assert made.fleet.router.decode_policy == "eldr", "else nobody is sent to the experts"
    assert made.deployment.decode.relocate, "of which the router asks where they lie"
    Deployment.model_validate(bare(made.document))
    assert placed.write(made.document, "linear").get("planned") is None
    joint = candidate(placed.write(OWN.document, "joint"))
    assert joint.lay == Lay("joint") and joint.fleet == OWN.fleet
    assert joint.deployment.decode.relocate
    assert lay_of(OWN.document) == Lay()


def test_how_often_they_move() -> None:
    found = knobs(moving=RelocationCost(5000))
    every, placed = found["relocate every"], found["experts"]
    assert not every.applies(OWN.document)
    joint = placed.write(OWN.document, "joint")
    assert every.applies(joint) and every.read(joint) == 3000, "a placement alone would age"
    off = every.write(joint, "off")
    assert every.read(off) == "off" and off == knobs()["experts"].write(OWN.document, "joint")
    made = candidate(every.write(off, 3000))
    assert made.lay == Lay("joint", 0, 3000) and made.document == joint
    assert candidate(placed.write(made.document, "nodes")).lay.every is None
    said = remarks(OWN, layouts(moving=RelocationCost(5000)), made)
    assert any("toolkit relocate decode-0 --kind joint --every 3000" in words for words in said)


@pytest.mark.parametrize(
    ("decode", "changes", "words"),
    [
        ({}, {}, "traffic in the profile does not drift: leave it off"),
        ({"ep": 2}, {"moving": RelocationCost(9), "topology": Topology(2, 1)}, "it takes ep = tp"),
        ({}, {"moving": RelocationCost(9), "expert_bytes": None}, "what an expert weighs"),
    ],
)
def test_what_is_not_moved_says_why(decode: Any, changes: Any, words: str) -> None:
    own = candidate(document(**decode))
    assert words in why_not_moved(own, layouts(**changes))
    assert "relocate every" not in knobs(own, **changes)


@pytest.mark.parametrize(
    ("decode", "changes"),
    [({"dp_attention": False, "dp": 1}, {}), ({"args": {}}, {"near": False})],
)
def test_without_an_all_to_all_there_are_no_homes(decode: Any, changes: Any) -> None:
    own = candidate(document(**decode))
    assert "it takes DP attention" in why_not_nodes(own, layouts(**changes))
    assert "nodes" not in knobs(own, **changes)["experts"].values


def test_drift_and_moves_are_a_trade() -> None:
    moving = RelocationCost(5000)
    shares = [moving.fresh(n) for n in (1, 1000, 3000, 30_000)]
    assert shares == sorted(shares, reverse=True) and shares[0] == pytest.approx(1, abs=1e-3)
    assert moving.fresh(None) == 0
    found = layouts(moving=moving)
    taken = [present(found.of(Lay("joint", 4, n)).aging).step_s for n in (1000, 3000, 30_000)]
    assert taken == sorted(taken, reverse=True) and taken[-1] > 0
    # No more than everything each time.
    cost = Cost(1e6, 1e9, ORDER_S, MOST).seconds(3 * 20, 3 * 20)
    assert taken[-1] * 30_000 <= cost
    assert present(found.of(Lay("joint", 4)).aging).step_s == 0
    assert layouts().of(Lay("joint", 4)).aging is None
    with pytest.raises(PlanError, match="--expert-drift"):
        RelocationCost(0)


def trials(found: Layouts, cost: Linear = LINKED) -> Trials:
    arriving = lambda seed: generate(azure_like(30, 4), seed)  # noqa: E731
    return Trials(cost, arriving, PlanSlo(), 100, found.experts, in_flight=64, layouts=found)


def tpot(playing: Trials, made: Document) -> float:
    return float(playing.play(candidate(made), 0)["tpot_mean"])


@pytest.mark.slow
def test_each_knob_changes_the_figures() -> None:
    placed, redundant = knobs()["experts"], knobs()["redundant experts"]
    playing = trials(layouts())
    plain = tpot(playing, redundant.write(OWN.document, 8))
    joint = tpot(playing, redundant.write(placed.write(OWN.document, "joint"), 8))
    nodes = tpot(playing, redundant.write(placed.write(OWN.document, "nodes"), 8))
    assert nodes < 0.9 * joint < 0.9 * plain, "pairs that stay in their node cost nothing"
    few = tpot(playing, placed.write(OWN.document, "nodes"))
    assert nodes < few, "replicas let more of them stay"
    # Never moved, they come to lie like linear; moved often they lie as placed, at a price.
    drifting = layouts(moving=RelocationCost(2000), expert_bytes=10.0)
    aging = trials(drifting)
    every = knobs(moving=RelocationCost(2000))["relocate every"]
    lies = placed.write(OWN.document, "joint")
    assert tpot(aging, lies) == tpot(aging, OWN.document)
    found = {n: tpot(aging, every.write(lies, n)) for n in (1000, 30_000)}
    assert found[1000] < found[30_000] < tpot(aging, lies)
    heavy = trials(replace(drifting, expert_bytes=1e9, _laid={}))
    assert tpot(heavy, every.write(lies, 1000)) > 1.5 * found[1000]


def test_the_search_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = searched(OWN, (split_of(OWN.document),), True, layouts=layouts())
    names = [knob.name for knob in made]
    assert {"experts", "redundant experts"} <= set(names)
    assert "experts" not in [each.name for each in searched(OWN, (split_of(OWN.document),), True)]
    search = Search(trials(layouts(topology=Topology(4, 2))), Given(), 50)
    odd = put(OWN.document, ("decode", "args", "ep-num-redundant-experts"), 3)
    assert search.candidate(OWN.document) is not None
    assert search.candidate(odd) is None, "19 experts do not divide over 4 GPUs"


def test_what_is_written(tmp_path: Path) -> None:
    found, path = layouts(), tmp_path / "plan.experts.json"
    assert found.write(OWN.document, path) == OWN.document and not path.exists()
    made = found.write(knobs()["experts"].write(OWN.document, "nodes"), path)
    Deployment.model_validate(made)
    assert made["decode"]["args"] == {
        "moe-a2a-backend": "deepep",
        "init-expert-location": str(path),
        "ep-dispatch-algorithm": "static",
    }
    placement = load_placement(path, 16, 4, PROFILE.model.layers)
    np.testing.assert_array_equal(
        placement.physical_to_logical, found.placement(Lay("nodes")).physical_to_logical
    )
    with pytest.raises(PlanError, match="cannot be written"):
        found.write(knobs()["experts"].write(OWN.document, "joint"), tmp_path / "none" / "x.json")


def test_what_cannot_be_searched() -> None:
    def refused(made: Document, folder: str | None, cost: Linear = LINKED) -> str:
        deployment = Deployment.model_validate(made)
        with pytest.raises(PlanError) as error:
            layouts_of(deployment, folder, cost)
        return str(error.value)

    flat = Linear(decode=Decode(base=0.01), prefill=Prefill(base=0.01, per_token=1e-5))
    assert "--experts" in refused(document(), None)
    assert "decode.ep is 1" in refused(document(ep=1), "x")
    assert "neither per_distinct nor links" in refused(document(), "x", flat)
    placed = document(args={"init_expert_location": "mine.json"})
    assert "places experts already" in refused(placed, "x")
    odd = LINKED.model_copy(
        update={"links": present(LINKED.links).model_copy(update={"gpus_per_node": 3})}
    )
    assert "do not divide" in refused(document(), "x", odd)


def test_the_command(tmp_path: Path) -> None:
    file, cost, out = tmp_path / "wide.yaml", tmp_path / "cost.yaml", tmp_path / "plan.yaml"
    file.write_text(json.dumps(document(kv_tokens=60_000)))
    cost.write_text(json.dumps(LINKED.model_dump(exclude={"machine"})))
    given = ["plan", str(file), "--cost", str(cost), "--experts", "embedded"]
    given += ["--rate", "20", "--seconds", "2", "--concurrency", "32", "--seeds", "1"]
    given += ["--screen", "20", "--budget", "16", "--out", str(out), "--json", str(out) + ".json"]
    done = CliRunner().invoke(app, [*given, "--expert-drift", "100"])
    assert done.exit_code and "--expert-drift is of --placement search" in str(done.output)
    done = CliRunner().invoke(app, [*given, "--placement", "search"])
    assert done.exit_code == 0, done.output
    assert "leave it off" in done.output
    said = json.loads(Path(str(out) + ".json").read_text())
    assert said["baseline"]["experts"]["kind"] == "linear" and "experts" in said["plan"]
    assert "planned" not in out.read_text()


def test_linear_is_the_start() -> None:
    found = layouts().placement(Lay())
    expected = linear(3, 16, TOPOLOGY).physical_to_logical
    np.testing.assert_array_equal(found.physical_to_logical, expected)
