"""What can be asked of a deployment file, and what each arm is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolkit.bench.suite.expert_questions import (
    BUFFER,
    CHUNK,
    EPLB,
    INTERVAL,
    LOCATION,
    OVERLAP,
    PlacedExperts,
)
from toolkit.bench.suite.question import BASE, GAP, TPOT, Asked, MovingExperts, Question
from toolkit.bench.suite.questions import questions_for
from toolkit.bench.suite.variants import changed, variant
from toolkit.resources import recipes_dir
from toolkit.settings.deployment import Deployment
from toolkit.settings.flags import flag_of
from toolkit.settings.systems import systems_of
from toolkit.settings.yaml_lines import read_document


def shipped(name: str) -> dict[str, Any]:
    return read_document(recipes_dir() / f"{name}.yaml")[0]


def asked_of(document: dict[str, Any]) -> tuple[Asked, set[str], set[str]]:
    found = questions_for(document)
    return (
        found,
        {question.system for question in found.questions},
        {each.system for each in found.left_out},
    )


def test_what_is_asked_of_shipped_files() -> None:
    _, demo, left = asked_of(shipped("cpu-demo"))
    assert demo == {"late dispatch", "level KV", "expert locality", "preempted prompts", "moves"}
    assert left == {"stages", "relocated experts", "expert placement", "speculative decoding"}
    wide, experts, left = asked_of(shipped("cpu-experts"))
    assert {"relocated experts", "level KV"} <= experts
    assert "no profile" in {each.system: each.why for each in wide.left_out}["expert placement"]
    _, stages, _ = asked_of(shipped("cpu-stages"))
    assert "stages" in stages and "expert locality" not in stages
    _, one, left = asked_of(shipped("cpu-classes"))
    assert one == {"late dispatch", "preempted prompts"} and {"level KV", "moves"} <= left
    _, drafting, _ = asked_of(shipped("cpu-speculative"))
    assert "speculative decoding" in drafting


@pytest.mark.parametrize(
    "name", ["cpu-demo", "cpu-stages", "cpu-all", "cpu-speculative", "qwen3-30b-a3b-8gpu"]
)
def test_every_variant_is_a_deployment_with_one_thing_more_than_the_base(name: str) -> None:
    document = shipped(name)
    found, _, _ = asked_of(document)
    base = set(systems_of(Deployment.model_validate(variant(document, found, BASE))))
    may = {"shortest prompt first", "Gimbal balance", "speculative decoding"}
    assert base - may == {"late dispatch", "first token from prefill", "classes"}
    assert not variant(document, found, BASE).get("capture_experts"), "nobody pays for ELDR"
    more = {
        key: set(systems_of(Deployment.model_validate(variant(document, found, key)))) - base
        for key in found.variants
        if key != BASE
    }
    wanted = {
        "experts": set(),  # its policy is the router's to switch to
        "stops": {"preempted prompts"},
        "chunks of 512": {"preempted prompts"},  # of which none is stopped
        "moves": {"moves"},
        "stages": {"stages", "moves"},
        "no draft": set(),
        "relocated": {"relocated experts"},
        "EPLB every 1000": set(),
        "EPLB every 250": set(),
    }
    assert more == {key: wanted[key] for key in more}
    for key in found.variants:
        drafts = "speculative" in variant(document, found, key)
        assert drafts == ("speculative" in document and key != "no draft")


PLACED = PlacedExperts({"eplb": "/load.json", "joint": "/affinity.json"})
WIDE: dict[str, Any] = {
    "name": "a",
    "decode": {"tp": 4, "ep": 4},
    "router": {"profile": "embedded"},
}


def wide(**decode: Any) -> dict[str, Any]:
    return {**WIDE, "decode": {**WIDE["decode"], **decode}}


def arms_of(document: dict[str, Any], subject: str) -> tuple[Question, dict[str, dict[str, Any]]]:
    """The question, and the decode role of each of its arms."""
    found = questions_for(document, placed=PLACED)
    (question,) = [each for each in found.questions if each.system == subject]
    files = {arm.name: variant(document, found, arm.variant) for arm in question.arms}
    for file in files.values():
        Deployment.model_validate(file)
    return question, {name: file["decode"] for name, file in files.items()}


def args_of(role: dict[str, Any]) -> dict[str, Any]:
    return {flag_of(key): value for key, value in role.get("args", {}).items()}


def test_relocation_is_asked_against_eplb_and_experts_that_stay() -> None:
    question, decode = arms_of(wide(args={"ep-num-redundant-experts": 8}), "relocated experts")
    same = {"ep-num-redundant-experts": 8}
    assert {name: args_of(role) for name, role in decode.items()} == {
        "relocated": same,
        "EPLB every 1000": {**same, EPLB: True, INTERVAL: 1000, CHUNK: 8},
        "EPLB every 250": {**same, EPLB: True, INTERVAL: 250, CHUNK: 8},
        "experts in order": same,
        "placed by load": {**same, LOCATION: "/load.json"},
    }
    assert [name for name, role in decode.items() if role["relocate"]] == ["relocated"]
    assert (question.metric, question.price) == (TPOT, GAP)
    assert {arm.policies["decode"] for arm in question.arms} == {"shortest_queue"}


def test_flags_of_the_file_are_kept_as_it_spells_them() -> None:
    given = {"enable_eplb": True, INTERVAL: 80, CHUNK: 2, LOCATION: "mine.json", BUFFER: 60}
    _, decode = arms_of(wide(args=given), "relocated experts")
    args = {name: args_of(role) for name, role in decode.items()}
    assert args["EPLB every 80"] == args_of({"args": given})
    assert args["EPLB every 20"][INTERVAL] == 20 and args["EPLB every 20"][CHUNK] == 2
    assert args["EPLB every 20"][BUFFER] == 20, "no more than the interval, or it does not start"
    assert args["relocated"][LOCATION] == "mine.json" and EPLB not in args["relocated"]
    assert args["placed by the file"][LOCATION] == "mine.json"
    assert EPLB not in args["placed by the file"]
    assert not {EPLB, LOCATION} & args["experts in order"].keys()


def test_experts_that_move_have_moved_before_a_round_counts() -> None:
    found = questions_for(wide(args={INTERVAL: 80}), placed=PLACED)
    assert found.moving == {
        "relocated": MovingExperts(80, relocates=True),
        "EPLB every 80": MovingExperts(80, relocates=False),
        "EPLB every 20": MovingExperts(20, relocates=False),
    }
    settle = {question.system: question.settle for question in found.questions}
    assert settle["relocated experts"] == settle["expert placement"] == 80
    assert {
        settle[system] for system in ("late dispatch", "moves", "level KV") if system in settle
    } == {0}
    once = questions_for(wide(args={INTERVAL: 1}), placed=PLACED)
    assert [name for name in once.variants if "EPLB" in name] == ["EPLB every 1"]


def test_a_placement_is_asked_against_overlap_and_both_together() -> None:
    question, decode = arms_of(wide(), "expert placement")
    assert {name: args_of(role) for name, role in decode.items()} == {
        "placed by the profile": {LOCATION: "/affinity.json"},
        "placed, with overlap": {LOCATION: "/affinity.json", OVERLAP: True},
        "experts in order": {},
        "placed by load": {LOCATION: "/load.json"},
        "with overlap": {OVERLAP: True},
    }
    assert [arm.name for arm in question.with_it] == [
        "placed by the profile",
        "placed, with overlap",
    ]
    both, has = arms_of(wide(args={OVERLAP: True, EPLB: True}), "expert placement")
    assert [arm.name for arm in both.also] == ["placed, without overlap"]
    assert all(EPLB in args_of(role) for role in has.values()), "it is another question's"
    assert OVERLAP in args_of(has["placed by the profile"])
    assert OVERLAP not in args_of(has["without overlap"])


def test_servers_placed_for_their_clusters_are_held_against_eldr_without() -> None:
    question, decode = arms_of(wide(replicas=2, expert_placement="clusters"), "expert placement")
    assert decode["placed by the profile"]["expert_placement"] == "clusters"
    assert question.ours.policies["decode"] == "eldr"
    (eldr,) = [arm for arm in question.others if arm.name == "eldr"]
    assert eldr.policies == question.ours.policies and "expert_placement" not in decode["eldr"]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (wide(ep=1), "decode.ep is 1"),
        (wide(ep=2), "where decode.ep is decode.tp (4), not 2"),
        ({**wide(), "speculative": "draft"}, "not tried with a draft"),
    ],
)
def test_where_experts_cannot_move_it_says_why(document: dict[str, Any], why: str) -> None:
    left = {each.system: each.why for each in questions_for(document, placed=PLACED).left_out}
    assert why in left["relocated experts"] and why in left["expert placement"]


def test_one_system_alone_can_be_asked_about() -> None:
    found = questions_for(wide(), placed=PLACED)
    found.only(())
    assert len(found.questions) > 2
    with pytest.raises(ValueError, match=r"stages: the file has no decode\.stages"):
        found.only(["stages"])
    with pytest.raises(ValueError, match="nonsense: no such question: late dispatch"):
        found.only(["nonsense"])
    found.only(["relocated experts"])
    assert [each.system for each in found.questions] == ["relocated experts"]


def test_the_page_of_measuring_has_a_row_for_every_question() -> None:
    page = (Path(__file__).parents[4] / "docs/pages/measuring.md").read_text()
    documents = [wide(), shipped("cpu-all"), shipped("cpu-stages"), shipped("cpu-speculative")]
    for document in documents:
        for question in questions_for(document, placed=PLACED).questions:
            assert f"\n| {question.system} " in page, question.system


def test_the_file_is_asked_with_as_many_decode_workers_whatever_it_says() -> None:
    document: dict[str, Any] = {"name": "a", "decode": {"stages": [{"upto": 9, "replicas": 2}, {}]}}
    found, systems, _ = asked_of(document)
    assert "stages" in systems
    assert variant(document, found, BASE)["decode"]["replicas"] == 3
    staged = variant(document, found, "stages")["decode"]
    assert staged["stages"] == document["decode"]["stages"] and "replicas" not in staged
    assert variant(document, found, "stages")["router"]["rebalance"] == {}
    knobs = {"over": 0.5, "mixed": 1e-5}
    document["router"] = {"rebalance": knobs}
    found, _, _ = asked_of(document)
    assert variant(document, found, "stages")["router"]["rebalance"] == knobs


@pytest.mark.parametrize(
    "document", [{"name": "a", "mode": "plain"}, {"name": "a", "router": "sglang"}]
)
def test_what_it_is_not_for(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="behind this project's router"):
        questions_for(document)


def test_changes_add_take_away_and_leave_the_file_alone() -> None:
    file = {"name": "a", "router": {"tau": 0.1, "classes": None}, "decode": {"args": {"x": 1}}}
    new = changed(file, {"router": {"tau": None, "classes": {}}}, {"decode": {"args": {"y": 2}}})
    assert new == {"name": "a", "router": {"classes": {}}, "decode": {"args": {"x": 1, "y": 2}}}
    assert file["router"] == {"tau": 0.1, "classes": None}
