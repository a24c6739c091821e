"""What a deployment turns on is said from its own keys; every system is on in some shipped file."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit.resources import recipes_dir
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load_deployment
from toolkit.settings.systems import SYSTEMS, systems_of

BASE = {"late dispatch", "first token from prefill"}


def on(**keys: Any) -> set[str]:
    return set(systems_of(Deployment.model_validate({"name": "a", **keys})))


@pytest.mark.parametrize(
    ("keys", "more"),
    [
        ({}, set()),
        ({"router": {"decode_policy": "br0"}}, {"level KV"}),
        ({"router": {"decode_policy": "pooled@least_tokens"}}, {"level KV"}),
        ({"router": {"decode_policy": "eldr", "profile": "embedded"}}, {"expert locality"}),
        ({"router": {"decode_policy": "eldr"}}, set()),
        ({"router": {"prefill_policy": "gimbal"}}, {"Gimbal balance"}),
        ({"router": {"decode_policy": "gimbal@0.9:0.1:64"}}, {"Gimbal balance"}),
        ({"prefill": {"waiting": "sjf"}}, {"shortest prompt first"}),
        ({"router": {"classes": {}}, "prefill": {"preempt": "strict"}},
         {"classes", "preempted prompts"}),
        ({"router": {"classes": {}}, "decode": {"preempt": {"pauses": 2}}},
         {"classes", "paused answers"}),
        ({"decode": {"stages": [{"upto": 100}, {}]}}, {"stages", "moves"}),
        ({"decode": {"stages": [{"upto": 100}, {}]}, "router": {"rebalance": False}}, {"stages"}),
        ({"router": {"rebalance": True}}, {"moves"}),
        ({"decode": {"tp": 2, "ep": 2, "relocate": True}}, {"relocated experts"}),
    ],
)  # fmt: skip
def test_what_is_on_beside_late_dispatch(keys: dict[str, Any], more: set[str]) -> None:
    assert on(**keys) == BASE | more


def test_what_late_dispatch_is_without() -> None:
    assert on(router={"first_token": "decode"}) == {"late dispatch"}
    assert on(router={"dispatch": "concurrent"}) == set()
    assert on(router="sglang") == on(mode="plain") == set()
    dp = {"dp": 2, "dp_policy": "br0"}
    assert on(router="sglang", decode=dp) == {"policy in the DP controller"}


def test_every_system_of_the_router_is_on_in_a_shipped_file_for_the_cpu() -> None:
    shipped: set[str] = set()
    for path in recipes_dir().glob("cpu-*.yaml"):
        shipped |= set(systems_of(load_deployment(path)))
    assert set(SYSTEMS) - shipped == {"policy in the DP controller"}, "SGLang's router has that"
