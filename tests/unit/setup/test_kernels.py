"""The step that runs numeric tests under other CPUs' kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import kernels as taken
from tests import numeric
from toolkit.setup import kernels
from toolkit.setup.kernels import KERNELS, available, cpu_flags

ROOT = Path(__file__).resolve().parents[3]
TAKEN = "from tests import kernels; import sys; print(kernels.wrong(sys.argv[1], kernels.taken()))"


def test_what_the_cpu_lacks_is_skipped_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    found = available({"pni", "avx2", "fma"})
    assert [each.core for each in found] == ["Haswell", "Prescott"]
    said = capsys.readouterr().out
    assert "SkylakeX, 2 threads: SKIPPED, this CPU has no avx512f, avx512cd" in said
    assert "Haswell" not in said
    everything = {flag for each in KERNELS for flag in each.needs}
    assert available(everything) == list(KERNELS)


def test_every_kind_and_both_numbers_of_threads_are_covered_on_any_cpu() -> None:
    assert {each.core for each in KERNELS} == {"Haswell", "SkylakeX", "Prescott"}
    assert {each.aten for each in KERNELS} == {"avx2", "avx512", "default"}
    here = [each for each in KERNELS if "avx512f" not in each.needs]
    assert {each.threads for each in here} == {1, 2}


@pytest.mark.parametrize("each", KERNELS, ids=lambda each: each.core)
def test_openblas_takes_what_it_is_told(each: kernels.Kernels) -> None:
    """In numpy's and in scipy's library; where the CPU lacks it, the name is taken all the same."""
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, "|".join(each.called)],
        cwd=ROOT, env=os.environ | each.environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "", done.stdout + done.stderr


def test_other_kernels_than_those_asked_for_are_told() -> None:
    assert taken.wrong("Haswell", {"one.so": "Haswell"}) == ""
    assert taken.wrong("Prescott|Katmai", {"one.so": "Katmai"}) == ""
    assert "{'two.so': 'Zen'}" in taken.wrong("Haswell", {"one.so": "Haswell", "two.so": "Zen"})
    assert "no OpenBLAS" in taken.wrong("Haswell", {})
    assert len(taken.taken()) == 2, "numpy's and scipy's"


def test_a_run_ends_loudly_with_other_kernels() -> None:
    environment = os.environ | {kernels.ASKED: "Nehalem"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/unit/setup/test_kernels.py", "-k", "lacks"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert "kernels Nehalem were asked for, OpenBLAS took others" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("code", "status", "word"), [(0, 0, "passed"), (5, 0, "passed"), (1, 1, "FAILED")]
)
def test_a_run_says_how_it_ended(
    code: int, status: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """5: `-k` or a path chose none of these tests."""
    command = [sys.executable, "-c", f"print('first'); print('3 passed in 1 s'); exit({code})"]
    assert kernels.run_one(KERNELS[0], command) == status
    said = capsys.readouterr().out
    assert f"kernels Haswell, 2 threads: {word}" in said and "3 passed" in said
    assert ("first" in said) == bool(status)


def test_an_unknown_cpu_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "cpu_flags", set)
    assert kernels.main([]) == 1


def test_this_cpu_is_known() -> None:
    assert "pni" in cpu_flags()


def test_the_listed_numeric_tests_exist() -> None:
    assert [path for path in sorted(kernels.MODULES) if not (ROOT / path).is_file()] == []
    text = "".join((ROOT / path).read_text() for path in kernels.MODULES)
    assert [name for name in sorted(numeric.LEFT_OUT) if f"def {name}(" not in text] == []


@pytest.mark.parametrize(
    ("scope", "counts"),
    [("", (25, 12, 4, 25)), ("default", (25, 12, 4, 25)), ("fast", (20, 10, 4, 25)),
     ("full", (200, 100, 16, 600))],
)  # fmt: skip
def test_a_property_has_25_examples_in_a_change_and_200_in_a_full_run(
    scope: str, counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(kernels.ASKED, raising=False)
    monkeypatch.setenv("TOOLKIT_TEST_SCOPE", scope)
    assert tuple(map(taken.examples, (100, 50, 8, 300))) == counts


def test_under_other_kernels_a_fifth_of_the_examples_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.ASKED, "Haswell")
    monkeypatch.setenv("TOOLKIT_TEST_SCOPE", "full")
    assert taken.examples(100) == 20
