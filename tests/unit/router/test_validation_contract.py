"""A release of SGLang with another field, type or message fails here, by name."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from tests.releases import fetch
from tests.releases.fetch import FITTED
from tests.sglang_python import run_python
from tests.unit.router.validation_contract import NAMES

OTHERS = [each for each in FITTED if each != version("sglang")]
MAIN = "tests.unit.router.validation_contract"


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    done = run_python(f"from {MAIN} import main; main()")
    assert done.returncode == 0, done.stderr[-3000:]
    verdicts: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return verdicts


@pytest.mark.parametrize("name", NAMES)
def test_validation_knows_the_installed_sglang(name: str, found: dict[str, str]) -> None:
    assert found[name] == "", found[name]


@pytest.mark.touched("request-fields")
@pytest.mark.sglang
@pytest.mark.timeout(600)
@pytest.mark.parametrize("release", OTHERS)
def test_validation_knows_the_other_releases(release: str) -> None:
    found = json.loads(fetch.said(release, MAIN).splitlines()[-1])
    assert list(found) == NAMES
    assert {name: said for name, said in found.items() if said} == {}
