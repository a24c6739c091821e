"""Patches that can be left out, and those that cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patches.base import REFUSED_EXIT_CODE, Patch, PatchError, Process
from patches.leaving_out import left_out
from patches.registry import ALL, patches_for
from tests.patch_tests import SHOWN
from toolkit.contract.variables import DEVICE_VARIABLE, PATCHES_VARIABLE, WITHOUT_VARIABLE

ROOT = Path(__file__).parents[3]
GAINING = {patch.name for patch in ALL if patch.gain}


def names(process: Process) -> set[str]:
    return {patch.name for patch in patches_for(process, on_cpu=True)}


def test_what_only_gains_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {process: names(process) for process in Process}
    monkeypatch.setenv(WITHOUT_VARIABLE, " early_send, cpu_attention ")
    for process, all_of_them in whole.items():
        assert names(process) == all_of_them - {"early_send", "cpu_attention"}
    assert left_out(ALL, "") == frozenset()


@pytest.mark.parametrize("name", sorted({patch.name for patch in ALL} - GAINING))
def test_no_other_can(name: str) -> None:
    with pytest.raises(PatchError) as refused:
        left_out(ALL, f"early_send,{name}")
    assert f"{name} cannot be left out: " in str(refused.value)
    assert "early_send" in str(refused.value)  # one that can


def test_the_refusal_says_who_relies_on_it() -> None:
    with pytest.raises(
        PatchError, match=r"late_binding cannot .*first_token, early_send, early_choice relies"
    ):
        left_out(ALL, "late_binding")
    with pytest.raises(PatchError, match="'nonsense' is no patch"):
        left_out(ALL, "nonsense")


def test_what_others_need_goes_with_them_only() -> None:
    everywhere = frozenset(Process)
    pair = (
        Patch("base", "why", everywhere, gain="time"),
        Patch("top", "why", everywhere, gain="time", needs=("base",)),
    )
    assert left_out(pair, "top") == {"top"}
    assert left_out(pair, "base,top") == {"base", "top"}
    with pytest.raises(PatchError, match="base cannot be left out alone, top relies on it"):
        left_out(pair, "base")


def test_every_patch_needs_patches_that_exist() -> None:
    known = {patch.name for patch in ALL}
    for patch in ALL:
        assert set(patch.needs) <= known, patch.name


def test_the_documents_know_a_test_of_every_patch() -> None:
    names = {patch.name for patch in ALL}
    assert names - SHOWN.keys() == set(), "say in tests/patch_tests.py where each is tested"
    assert SHOWN.keys() - names == set(), "no such patch any more"
    for path in SHOWN.values():
        assert (ROOT / path).is_file(), path


def test_a_worker_that_is_to_do_without_what_it_needs_does_not_start() -> None:
    asked = {PATCHES_VARIABLE: "1", DEVICE_VARIABLE: "cpu", WITHOUT_VARIABLE: "late_binding"}
    done = subprocess.run(
        [sys.executable, "-c", "import patches; patches.register(); print('started')"],
        env=os.environ | asked,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == REFUSED_EXIT_CODE
    assert "late_binding cannot be left out" in done.stderr.splitlines()[-1]
    assert "started" not in done.stdout
