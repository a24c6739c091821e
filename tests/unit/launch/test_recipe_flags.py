"""Every flag of the GPU recipes against the installed SGLang's own argument parser and checks.

Those of the CPU recipes are asked of SGLang whenever `tests/e2e` starts them.
"""

import json
import re
from typing import Any

import pytest

from toolkit.launch.checks.counted import counted
from toolkit.launch.checks.flags import IB_FLAG, Resolved
from toolkit.launch.checks.flags import _ask as ask
from toolkit.launch.checks.flags import _without as without
from toolkit.launch.checks.redundant import redundant, worker_problems
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.launch.wait_limits import WAIT_LIMITS
from toolkit.resources import recipes_dir
from toolkit.settings.load import load_deployment

RECIPES = sorted(recipes_dir().glob("*.yaml"))
GPU = [each for each in RECIPES if load_deployment(each).device == "cuda"]
LARGE = recipes_dir() / "deepseek-v3-multinode.yaml"
GUIDE = {
    "enable_two_batch_overlap": True, "moe_a2a_backend": "deepep", "enable_eplb": True,
    "ep_num_redundant_experts": 32, "enable_dp_attention": True,
}  # fmt: skip
"""What SGLang's guide to large-scale EP has on both sides."""


@pytest.fixture(scope="module")
def verdicts() -> dict[str, tuple[Plan, Resolved]]:
    """What SGLang makes of the GPU recipes, all asked in one process."""
    plans = {path.stem: resolve(load_deployment(path)) for path in GPU}
    lines = []
    for name, plan in plans.items():
        for worker in plan.workers:
            argv = [plan.model.check_path if a == plan.model.path else a for a in worker.argv]
            argv = without(argv, IB_FLAG)  # asks for devices that are here
            lines.append({"name": f"{name}/{worker.name}", "argv": argv, "device": plan.device})
    answers, complaint = ask(lines)
    assert complaint is None
    errors = {name: answer["error"] for name, answer in answers.items() if not answer["ok"]}
    assert errors == {}
    return {
        name: (plan, {w.name: answers[f"{name}/{w.name}"]["resolved"] for w in plan.workers})
        for name, plan in plans.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in GPU])
def test_sglang_takes_the_flags_of(name: str, verdicts: dict[str, tuple[Plan, Resolved]]) -> None:
    plan, resolved = verdicts[name]
    assert not counted(plan, resolved)
    assert not redundant(plan, resolved)


@pytest.mark.slow
def test_the_large_recipe_is_as_sglangs_guide_has_it(
    verdicts: dict[str, tuple[Plan, Resolved]],
) -> None:
    plan, resolved = verdicts[LARGE.stem]
    for worker in plan.workers:
        found = resolved[worker.name]
        assert {name: found[name] for name in GUIDE} == GUIDE
        assert found["ep_size"] == found["tp_size"] == found["dp_size"] == worker.tp
        assert (256 + 32) % found["ep_size"] == 0, "every GPU has as many expert slots"
        # Patience beyond SGLang's own is in vain, and a node that died must not be waited for.
        assert found["watchdog_timeout"] > WAIT_LIMITS["cuda"]["idle_timeout_s"]


def test_the_large_recipe_names_a_device_for_each_gpu_and_every_interface() -> None:
    plan = resolve(load_deployment(LARGE))
    for worker in plan.workers:
        devices = json.loads(worker.argv[worker.argv.index("--disaggregation-ib-device") + 1])
        assert sorted(map(int, devices)) == list(worker.gpus)
        assert len(set(devices.values())) == len(worker.gpus)
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            assert worker.env[name] == worker.env["NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"]
        listed = [each.split(":")[0] for each in worker.env["NVSHMEM_HCA_LIST"].split(",")]
        assert listed == worker.env["NCCL_IB_HCA"].split(",") == list(devices.values())


def test_a_rank_may_send_all_tokens_that_its_requests_have_verified() -> None:
    deployment = load_deployment(LARGE)
    assert deployment.speculative is not None
    [decode] = {
        (
            worker.max_running // worker.dp,
            worker.env["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"],
        )
        for worker in resolve(deployment).workers
        if worker.role == "decode" and worker.max_running
    }
    assert decode == (128, str(128 * (deployment.speculative.steps + 1)))


def test_every_flag_of_the_large_recipe_has_its_reason() -> None:
    lines = LARGE.read_text().splitlines()
    start = lines.index("prefill:")
    keys = [line for line in lines[start:] if re.match(r"    [a-z-]+: ", line)]
    first: dict[Any, Any] = {}
    for line in keys:
        first.setdefault(line.split(":")[0], line)
    assert len(first) > 10
    assert [line for line in first.values() if "#" not in line] == []


@pytest.mark.parametrize(
    ("resolved", "noted"),
    [
        ({"ep_num_redundant_experts": 32}, True),
        ({"ep_num_redundant_experts": 32, "init_expert_location": "trivial"}, True),
        ({"ep_num_redundant_experts": 32, "enable_eplb": True}, False),
        ({"ep_num_redundant_experts": 32, "init_expert_location": "/x.json"}, False),
        ({"ep_num_redundant_experts": 0}, False),
        ({}, False),
    ],
)
def test_redundant_experts_without_a_placement_are_noted(
    resolved: dict[str, Any], noted: bool
) -> None:
    assert bool(worker_problems(resolved)) == noted
    assert not any(problem.fatal for problem in worker_problems(resolved))
