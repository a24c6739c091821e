"""The patches against the SGLang that is installed: one contract test per symbol, and refusal."""

import os
import subprocess
import sys

import pytest

from patches.base import REFUSED_EXIT_CODE, Patch, Process
from patches.registry import ALL, patches_for
from tests.releases.contract import ALL_TOGETHER, VARIANT, read
from tests.sglang_python import CPU_ENVIRONMENT, PROJECT, run_python

SYMBOLS = [(patch.name, symbol) for patch in ALL for symbol in (*patch.symbols, VARIANT)]

CONTRACT = """
from patches.stubs import put_on_path
put_on_path()
from tests.releases.contract import report
report()
"""


@pytest.fixture(scope="module")
def contract_report() -> dict[tuple[str, str], str]:
    """The verdict on every symbol, from one process."""
    finished = run_python(CONTRACT)
    assert finished.returncode == 0, finished.stderr[-2000:]
    found = {(each.patch, each.symbol): each.problem for each in read(finished.stdout)}
    whole = {symbol: problem for (name, symbol), problem in found.items() if name == ALL_TOGETHER}
    assert whole == dict.fromkeys(Process, "")
    return found


@pytest.mark.parametrize(("name", "symbol"), SYMBOLS)
def test_symbol_is_where_the_patch_expects_it(
    name: str, symbol: str, contract_report: dict[tuple[str, str], str]
) -> None:
    assert contract_report[name, symbol] == ""


def test_every_patch_says_why_and_names_a_symbol() -> None:
    for patch in ALL:
        assert isinstance(patch, Patch)
        assert patch.why
        assert patch.symbols, patch.name
    assert len({patch.name for patch in ALL}) == len(ALL)


BROKEN = """
{breakage}
import patches
from patches.environment import installed
patches.register()
print("started", installed())
"""


@pytest.mark.parametrize(
    ("breakage", "said"),
    [
        (
            "import sglang.srt.disaggregation.prefill as p\n"
            "del p.SchedulerDisaggregationPrefillMixin.has_bootstrapped_waiting_req",
            "chunk_yield",
        ),
        (
            "import sglang.srt.managers.scheduler as s\n"
            "s.Scheduler.get_init_info = lambda renamed: None",
            "scheduler_report",
        ),
        (
            "import sglang.srt.plugins.hook_registry as r\n"
            "def fail(target, hooks): raise RuntimeError('no')\n"
            "r.HookRegistry._apply_target = staticmethod(fail)",
            "did not apply",
        ),
    ],
    ids=["symbol gone", "signature changed", "registry failed silently"],
)
def test_a_half_patched_worker_refuses_and_names_the_patch(breakage: str, said: str) -> None:
    finished = run_python(BROKEN.format(breakage=breakage))
    last = finished.stderr.strip().splitlines()[-1]
    assert finished.returncode == REFUSED_EXIT_CODE, finished.stderr[-2000:]
    assert last.startswith("toolkit: refused: ")
    assert said in last
    assert "started" not in finished.stdout


def test_an_intact_worker_reports_every_patch() -> None:
    finished = run_python(BROKEN.format(breakage=""))
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert "late_binding" in finished.stdout
    assert "cpu_expert_remap" in finished.stdout


def test_without_the_toolkit_the_plugin_leaves_sglang_alone() -> None:
    code = (
        "import patches, sys; patches.register()\n"
        "from patches.environment import installed\n"
        "print(installed(), 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    environment = os.environ | {"TOOLKIT_PATCHES": "0"}
    output = subprocess.check_output(command, text=True, cwd=PROJECT, env=environment, timeout=60)
    assert output.strip() == "() False"


def test_what_nobody_asked_for_is_not_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, set[str]] = {}
    for patch in ALL:
        if patch.variable:
            asked.setdefault(patch.variable, set()).add(patch.name)
    assert sorted(map(sorted, asked.values())) == [
        ["batch_trace", "sent_time_trace"],
        ["cpu_background"],
        ["early_place"],
        ["memory_turn"],
        ["move_held", "move_order", "move_outgoing"],
        ["preempt_admission", "preempt_boundary", "preempt_experts", "sent_time_preempt"],
        ["preempt_answers"],
        ["private_message_sockets", "private_ports"],
        ["relocation_order", "relocation_rank"],
        ["worker_key", "worker_key_sent"],
    ]
    for variable, names in asked.items():
        found = set()
        for process in Process:
            monkeypatch.delenv(variable, raising=False)
            without = {patch.name for patch in patches_for(process, on_cpu=True)}
            monkeypatch.setenv(variable, "1")
            found |= {patch.name for patch in patches_for(process, on_cpu=True)} - without
        assert found == names


def test_worker_refuses_when_its_plugin_is_kept_out() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "patches.worker", "--help"],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env=os.environ | CPU_ENVIRONMENT | {"SGLANG_PLUGINS": "somebody_elses"},
        timeout=120,
    )
    assert finished.returncode == REFUSED_EXIT_CODE
    assert "SGLANG_PLUGINS=somebody_elses" in finished.stderr.strip().splitlines()[-1]


CHECKED = """
import sys
from patches.experts import signature
from sglang.srt.server_args import prepare_server_args
from toolkit.embedded import model_path
class Refused(Exception): pass
def refuse(reason): raise Refused(reason)
signature.refuse = refuse
for flags in sys.argv[1:]:
    common = f"--model-path {model_path()} --device cpu --attention-backend torch_native "
    sys.stderr = sys.stdout
    try:
        signature.check_worker(prepare_server_args((common + flags).split()))
        print("verdict", "taken")
    except Refused as error:
        print("verdict", error)
"""
CAPTURE = "--enable-return-routed-experts"
DP = "--tp 2 --dp 2 --enable-dp-attention"
VERDICTS = {
    CAPTURE: "taken",
    f"{CAPTURE} {DP}": "taken",
    "--chunked-prefill-size -1": "taken",
    f"{CAPTURE} --chunked-prefill-size -1": "chunked prefill is off",
    f"{CAPTURE} --enable-two-batch-overlap {DP}": "the tokens of all ranks",
    f"{CAPTURE} --moe-runner-backend triton_kernel": "taken",
}


def test_a_worker_refuses_to_capture_wrong_experts_and_warns_of_none() -> None:
    done = run_python(CHECKED, arguments=list(VERDICTS))
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    found = [line.removeprefix("verdict ") for line in lines if line.startswith("verdict ")]
    assert len(found) == len(VERDICTS)
    assert [
        says for says, line in zip(VERDICTS.values(), found, strict=True) if says not in line
    ] == []
    assert [line for line in lines if "toolkit: triton_kernel may choose experts" in line]


LOADED = """
from types import SimpleNamespace
import patches
patches.register()
import torch
from patches.experts.capture import all_known, captured_rows
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.state_capturer import routed_experts
from sglang.srt.state_capturer.base import BaseTopkCapturer
capturer = BaseTopkCapturer(16, 4, 2, 3, "cpu", "routed_experts")
routed_experts.set_global_experts_capturer(capturer)
capturer.host_cache.buffer[:] = 5  # of the tokens that had these slots before
capturer.host_cache.buffer[:, 1] = -1  # a dense layer
req = SimpleNamespace(kv=SimpleNamespace(req_pool_idx=0))
pool = SimpleNamespace(req_to_token=torch.tensor([[3, 4, 9, 10, 11, 12]]))
print(all_known(captured_rows(req, pool, 0, 5)))
alloc = lambda count: torch.arange(9, 9 + count)
controller = SimpleNamespace(mem_pool_device_allocator=SimpleNamespace(alloc=alloc), load_queue=[])
print(HiCacheController.load(controller, torch.arange(2)).tolist())
rows = captured_rows(req, pool, 0, 5)
print(rows[:, 0, 0].tolist(), all_known(rows), all_known(rows[:2]), all_known(rows[2:4]))
controller.mem_pool_device_allocator.alloc = lambda count: None
print(HiCacheController.load(controller, torch.arange(2)))
"""


def test_slots_that_hierarchical_cache_fills_have_no_experts() -> None:
    done = run_python(LOADED)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-4:] == [
        "True",
        "[9, 10]",
        "[5, 5, -1, -1, 5] False True True",
        "None",
    ]
