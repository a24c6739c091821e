"""Settings under which SGLang's capturer keeps wrong experts, as SGLang itself reads the flags."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit.contract.capturing import BYPASS, STORES, worker_problems
from toolkit.embedded import model_path
from toolkit.launch.checks import possible
from toolkit.launch.checks.counted import counted
from toolkit.launch.command import source_root
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.settings.deployment import Deployment

pytestmark = pytest.mark.touched("launching")

RANKS = {"tp": 2, "dp": 2, "dp_attention": True}
GOOD: dict[str, Any] = {
    "enable_return_routed_experts": True,
    "enable_two_batch_overlap": False,
    "disaggregation_mode": "prefill",
    "chunked_prefill_size": 8192,
    "enable_dp_attention": False,
    "tp_size": 1,
    "moe_a2a_backend": "none",
    "moe_runner_backend": "auto",
    "prefill_cuda_graph": "breakable",
    "only_sliding_window": False,
    "disable_radix_cache": False,
}
CASES: dict[str, tuple[dict[str, Any], str | None]] = {
    "plain": ({}, None),
    "ranks": (RANKS, None),
    "graphs": (
        RANKS | {"args": {"cuda-graph-backend-prefill": "breakable"}},
        "disable-prefill-cuda-graph",
    ),
    "graphs in JSON": (
        RANKS | {"args": {"cuda-graph-config": {"prefill": {"backend": "full"}}}},
        "disable-prefill-cuda-graph",
    ),
    "graphs with DeepEP": (
        RANKS | {"args": {"cuda-graph-backend-prefill": "breakable", "moe-a2a-backend": "deepep"}},
        None,
    ),
    "halves": (RANKS | {"args": {"enable-two-batch-overlap": True}}, "enable-two-batch-overlap"),
    "halves with DeepEP": (
        RANKS | {"args": {"enable-two-batch-overlap": True, "moe-a2a-backend": "deepep"}},
        None,
    ),
    "halves with another exchange": (
        RANKS | {"args": {"enable-two-batch-overlap": True, "moe-a2a-backend": "mooncake"}},
        "moe-a2a-backend enable-two-batch-overlap",
    ),
    "stages": ({"args": {"pp-size": 2}}, "pp-size"),
    "one stage": ({"args": {"pp-size": 1, "attn-cp-size": 1, "enable-prefill-cp": False}}, None),
    "context parallel": (
        {"tp": 2, "args": {"enable-prefill-cp": True, "attn-cp-size": 2, "cp-strategy": "zigzag"}},
        "attn-cp-size enable-prefill-cp",
    ),
    "one chunk": ({"args": {"chunked-prefill-size": -1}}, "chunked-prefill-size"),
    "store": ({"args": {"enable-flexkv": True}}, "enable-flexkv"),
    "kernel": ({"args": {"moe-runner-backend": "triton_kernel"}}, "moe-runner-backend"),
    "a role that changes": (
        {"args": {"enable-pd-role-switch": True, "disable-radix-cache": True}},
        "enable-pd-role-switch",
    ),
    "speculation": ({"args": {"speculative-algorithm": "NGRAM"}}, "speculative-algorithm"),
}
LATE: dict[str, tuple[dict[str, Any], bool]] = {
    "stages": ({"pp-size": 2}, False),
    "host memory": ({"enable-hierarchical-cache": True}, True),
    "storage": ({"enable-hierarchical-cache": True, "hicache-storage-backend": "file"}, False),
    "storage, staged": (
        {
            "enable-hierarchical-cache": True,
            "hicache-storage-backend": "file",
            "hicache-host-memory-mode": "buffer_only",
        },
        True,
    ),
    "selective": (
        {
            "enable-hierarchical-cache": True,
            "hicache-write-policy": "write_through_selective",
        },
        False,
    ),
}
WINDOWS: dict[str, tuple[dict[str, Any], str | None]] = {
    "windows, radix cache": ({}, None),
    "windows": ({"disable-radix-cache": True}, "disable-hybrid-swa-memory"),
    "windows, one pool": ({"disable-radix-cache": True, "disable-hybrid-swa-memory": True}, None),
}


def plan(**fields: Any) -> Plan:
    data = {"name": "t", "device": "cuda", "capture_experts": True}
    return resolve(Deployment.model_validate(data | fields))


def windowed(folder: Path) -> Path:
    """The embedded model's config, with a sliding window in every layer."""
    config = json.loads((model_path() / "config.json").read_text())
    config |= {"is_hybrid_swa": True, "hybrid_layer_pattern": [1] * config["num_hidden_layers"]}
    config |= {"sliding_window": 128}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"0" * 1000)
    return folder


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Plan, dict[str, Any]]]:
    """Name -> plan, and what SGLang made of the flags of its prefill worker, from one process."""
    plans = {name: plan(prefill=prefill) for name, (prefill, _) in CASES.items()}
    plans |= {name: plan(prefill={"args": args}) for name, (args, _) in LATE.items()}
    model = str(windowed(tmp_path_factory.mktemp("windowed")))
    plans |= {
        name: plan(prefill={"args": args}, model=model) for name, (args, _) in WINDOWS.items()
    }
    lines = [
        {"name": name, "device": "cuda", "argv": made.workers[0].argv}
        for name, made in plans.items()
    ]
    done = subprocess.run(
        [sys.executable, "-m", "patches.check_args"],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        cwd=source_root(),
        timeout=300,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {a["name"]: a["error"] for a in answers} == dict.fromkeys(plans), done.stderr[-2000:]
    return {a["name"]: (plans[a["name"]], {"prefill-0": a["resolved"]}) for a in answers}


@pytest.mark.sglang
@pytest.mark.parametrize("name", [*CASES, *WINDOWS])
def test_what_sglang_makes_of_the_flags_is_judged(name: str, settled: Any) -> None:
    flag = {**CASES, **WINDOWS}[name][1]
    found = counted(*settled[name])
    flags = flag.split() if flag else []
    assert [p.where for p in found] == [f"prefill.args.{each}" for each in flags]
    assert [p.fatal for p in found] == [name != "kernel" for _ in flags]


@pytest.mark.slow
@pytest.mark.parametrize("name", LATE)
def test_late_dispatch_needs_prefills_that_do_not_wait(name: str, settled: Any) -> None:
    late, resolved = settled[name]
    found = possible.optimistic(late, resolved)
    assert (not found) == LATE[name][1]
    if found:
        assert found[0].fatal and "dispatch: concurrent" in found[0].repair
    concurrent = plan(prefill={"args": LATE[name][0]}, router={"dispatch": "concurrent"})
    assert not possible.optimistic(concurrent, resolved)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({}, None),
        ({"enable_two_batch_overlap": True}, "enable-two-batch-overlap"),
        ({"enable_two_batch_overlap": True, "disaggregation_mode": "decode"},
         "enable-two-batch-overlap"),
        ({"pp_size": 2}, "pp-size"),
        ({"pp_size": 1, "attn_cp_size": 1, "enable_prefill_cp": False}, None),
        ({"attn_cp_size": 2, "disaggregation_mode": "null"}, "attn-cp-size"),
        ({"enable_prefill_cp": True}, "enable-prefill-cp"),
        ({"moe_a2a_backend": "mooncake", "tp_size": 4}, "moe-a2a-backend"),
        ({"moe_a2a_backend": "mooncake"}, None),
        ({"moe_a2a_backend": "deepep", "tp_size": 4}, None),
        ({"chunked_prefill_size": 0}, "chunked-prefill-size"),
        ({"chunked_prefill_size": -1, "disaggregation_mode": "null"}, "chunked-prefill-size"),
        ({"chunked_prefill_size": -1, "disaggregation_mode": "decode"}, None),
        ({"enable_dp_attention": True}, "disable-prefill-cuda-graph"),
        ({"enable_dp_attention": True, "moe_a2a_backend": "deepep_v2"}, None),
        ({"enable_dp_attention": True, "prefill_cuda_graph": "disabled"}, None),
        ({"enable_dp_attention": True, "disaggregation_mode": "decode"}, None),
        ({"only_sliding_window": True}, None),
        ({"only_sliding_window": True, "disaggregation_mode": "null"}, "disable-hybrid-swa-memory"),
        *(({name: "yes"}, name.replace("_", "-")) for name in STORES),
        ({"enable_lmcache": True, "disaggregation_mode": "decode"}, None),
        *(({"moe_runner_backend": name}, "moe-runner-backend") for name in BYPASS),
    ],
)  # fmt: skip
def test_the_worker_judges_the_same_values(changes: dict[str, Any], flag: str | None) -> None:
    found = worker_problems(GOOD | changes)
    assert [p.where for p in found] == ([flag] if flag else [])
    assert not worker_problems(GOOD | changes | {"enable_return_routed_experts": False})


def test_every_role_is_judged_and_refused_flags_are_not() -> None:
    wrong = GOOD | {"enable_two_batch_overlap": True}
    found = counted(plan(), {"prefill-0": wrong, "decode-0": wrong})
    found += counted(plan(mode="plain"), {"worker-0": wrong})
    roles = ("prefill", "decode", "worker")
    assert [p.where for p in found] == [f"{role}.args.enable-two-batch-overlap" for role in roles]
    assert counted(plan(), {"prefill-0": {}}) == []
    assert possible.optimistic(plan(), {"prefill-0": {}}) == []
