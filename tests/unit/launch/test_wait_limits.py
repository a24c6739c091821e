"""How long the router waits for silent workers, by device."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.decide.watchdog import StuckBounds
from toolkit.launch.resolve import resolve
from toolkit.launch.wait_limits import STUCK, WAIT_LIMITS, wait_limits
from toolkit.resources import recipes_dir
from toolkit.settings.load import load_deployment
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.section import Router

WATCHDOG_S = 300.0
"""SGLang's --watchdog-timeout; a test of the recipes' flags asks the installed one."""


def config(file: str, device: str | None = None) -> RouterConfig:
    deployment = load_deployment(recipes_dir() / file)
    plan = resolve(deployment.on_device(device) if device else deployment)
    assert plan.router is not None
    return RouterConfig.model_validate(plan.router.config)


def test_a_gpu_has_longer_than_a_cpu() -> None:
    assert (config("cpu-demo.yaml").silent_s, config("cpu-demo.yaml").hung_s) == (1.5, 5.0)
    gpu = config("cpu-demo.yaml", "cuda")
    assert (gpu.silent_s, gpu.hung_s, gpu.idle_timeout_s) == (5.0, 30.0, 120.0)
    # What the file says holds on both.
    assert config("cpu-eldr.yaml").hung_s == config("cpu-eldr.yaml", "cuda").hung_s == 40


def test_a_plan_shows_when_a_rank_is_stuck_on_its_device() -> None:
    for device in ("cpu", "cuda"):
        deployment = load_deployment(recipes_dir() / "cpu-demo.yaml").on_device(device)
        shown = resolve(deployment).to_json()["restart"]
        assert StuckBounds(shown["stuck_s"], shown["announced_s"]) == STUCK[device]


def test_the_routers_own_defaults_are_those_of_a_cpu() -> None:
    for key, seconds in WAIT_LIMITS["cpu"].items():
        assert RouterConfig.model_fields[key].default == seconds, key


@pytest.mark.parametrize("device", list(WAIT_LIMITS))
def test_a_worker_is_left_alone_before_it_is_given_up_and_sglang_ends_it_last(device: str) -> None:
    times = WAIT_LIMITS[device]
    assert times["silent_s"] > 1.0, "events come once a second"
    assert times["silent_s"] < times["hung_s"] < times["idle_timeout_s"] < WATCHDOG_S


@given(
    st.sampled_from(list(WAIT_LIMITS)),
    st.dictionaries(st.sampled_from(list(WAIT_LIMITS["cpu"])), st.floats(0.1, 1000)),
)
def test_what_is_said_holds_and_the_rest_is_the_devices(device: str, said: dict[str, Any]) -> None:
    told = wait_limits(device, Router(**said))
    assert told.items() >= said.items()
    found = WAIT_LIMITS["cpu"] | told  # as the router fills it up
    if "silent_s" not in said:
        assert found["silent_s"] <= found["hung_s"]
    for key in WAIT_LIMITS[device].keys() - said - {"silent_s"}:
        assert found[key] == WAIT_LIMITS[device][key]
