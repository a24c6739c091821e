"""`outgoing_cases` in a process that SGLang can be imported in."""

from pathlib import Path

import pytest

from tests.sglang_python import run_python

pytestmark = pytest.mark.touched("engine")

CASES = Path(__file__).with_name("outgoing_cases.py")
CODE = f"""
import sys
import sglang.srt.disaggregation.utils
import pytest
sys.exit(pytest.main([{str(CASES)!r}, "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]))
"""


def test_a_move_step_by_step() -> None:
    ended = run_python(CODE)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout
