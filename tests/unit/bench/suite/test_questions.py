"""What can be asked of a deployment file, and what each arm is made of."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit.bench.suite.question import BASE, Asked
from toolkit.bench.suite.questions import questions_for
from toolkit.bench.suite.variants import changed, variant
from toolkit.resources import recipes_dir
from toolkit.settings.deployment import Deployment
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
    assert left == {"stages", "relocated experts", "speculative decoding"}
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
    }
    assert more == {key: wanted[key] for key in more}
    for key in found.variants:
        drafts = "speculative" in variant(document, found, key)
        assert drafts == ("speculative" in document and key != "no draft")


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
