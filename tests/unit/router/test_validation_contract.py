"""A release of SGLang with another field, type or message fails here, by name."""

import pytest

from tests.sglang_python import found_by
from tests.unit.router.validation_contract import NAMES


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    verdicts: dict[str, str] = found_by(
        "from tests.unit.router.validation_contract import main; main()"
    )
    return verdicts


@pytest.mark.parametrize("name", NAMES)
def test_validation_knows_the_installed_sglang(name: str, found: dict[str, str]) -> None:
    assert found[name] == "", found[name]
