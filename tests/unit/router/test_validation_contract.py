"""A release of SGLang with another field, type or message fails here, by name."""

import json

import pytest

from tests.sglang_python import run_python
from tests.unit.router.validation_contract import NAMES


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    done = run_python("from tests.unit.router.validation_contract import main; main()")
    assert done.returncode == 0, done.stderr[-3000:]
    verdicts: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return verdicts


@pytest.mark.parametrize("name", NAMES)
def test_validation_knows_the_installed_sglang(name: str, found: dict[str, str]) -> None:
    assert found[name] == "", found[name]
