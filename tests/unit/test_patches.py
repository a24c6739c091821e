"""The patches against the SGLang that is installed: one contract test per symbol, and refusal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patches.base import REFUSED_EXIT_CODE, Patch
from patches.registry import ALL

PROJECT = Path(__file__).resolve().parents[2]
SYMBOLS = [(patch.name, symbol) for patch in ALL for symbol in patch.symbols]

CPU_ENVIRONMENT = {
    "TOOLKIT_PATCHES": "1",
    "TOOLKIT_DEVICE": "cpu",
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
}

CONTRACT = """
import sys
from patches.worker import CPU_STUBS, declare_torchvision_operators
sys.path.insert(0, str(CPU_STUBS))
declare_torchvision_operators()
from patches.base import PatchError, check_contract
from patches.registry import ALL
for patch in ALL:
    for symbol in patch.symbols:
        hooks = tuple(hook for hook in patch.hooks if hook.target == symbol)
        requires = () if hooks else (symbol,)
        try:
            check_contract(type(patch)(patch.name, patch.why, patch.processes, hooks, requires))
            print("ok", patch.name, symbol)
        except PatchError as error:
            print("moved", patch.name, symbol, error)
"""


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env=os.environ | CPU_ENVIRONMENT | environment,
        timeout=300,
    )


@pytest.fixture(scope="module")
def contract_report() -> dict[tuple[str, str], str]:
    """The verdict on every symbol, from one process (importing SGLang takes ten seconds)."""
    finished = run_python(CONTRACT)
    assert finished.returncode == 0, finished.stderr[-2000:]
    report = {}
    for line in finished.stdout.splitlines():
        if line.startswith(("ok ", "moved ")):
            verdict, name, symbol, *rest = line.split(" ", 3)
            report[name, symbol] = " ".join([verdict, *rest])
    return report


@pytest.mark.parametrize(("name", "symbol"), SYMBOLS)
def test_symbol_is_where_the_patch_expects_it(
    name: str, symbol: str, contract_report: dict[tuple[str, str], str]
) -> None:
    assert contract_report[name, symbol] == "ok"


def test_every_patch_says_why_and_names_a_symbol() -> None:
    for patch in ALL:
        assert isinstance(patch, Patch)
        assert patch.why
        assert patch.symbols, patch.name
    assert len({patch.name for patch in ALL}) == len(ALL)


BROKEN = """
import sys
from patches.worker import CPU_STUBS, declare_torchvision_operators
sys.path.insert(0, str(CPU_STUBS))
declare_torchvision_operators()
{breakage}
import patches
patches.register()
print("started", patches.installed())
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
        "print(patches.installed(), 'torch' in sys.modules)"
    )
    finished = run_python(code, TOOLKIT_PATCHES="0")
    assert finished.stdout.strip() == "() False"


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
