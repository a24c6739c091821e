"""What request validation knows of each release's fields is what the release declares."""

import pytest

from tests.releases import fetch, fields
from tests.releases.fetch import FITTED
from toolkit.router.validate.declared import CHECKS, DECLARED, NAMES, RELEASES, Types, in_release
from toolkit.router.validate.endpoints import ENDPOINTS

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
AGAIN = "python -m tests.releases.fields --record"


def _recorded(rows: dict[str, Types], release: str) -> dict[str, str]:
    texts = {name: in_release(row, release) for name, row in rows.items()}
    return {name: text for name, text in texts.items() if text is not None}


@pytest.mark.touched("request-fields")
@pytest.mark.parametrize("release", FITTED)
def test_fields_are_those_that_were_recorded(release: str) -> None:
    found = fields.declared(fetch.source(release))
    for known, recorded in ((found.fields, DECLARED), (found.checks, CHECKS)):
        assert known.keys() <= recorded.keys(), AGAIN
        for place, rows in recorded.items():
            now = _recorded(rows, release)
            assert known.get(place, {}) == now, f"{place}: {AGAIN}, and say what becomes of it"
    assert found.names == _recorded(NAMES, release), AGAIN


def test_every_endpoint_and_release_is_recorded() -> None:
    assert RELEASES == FITTED, AGAIN
    assert fields.MODELS.keys() - {"sampling_params"} == ENDPOINTS.keys()
    assert all(DECLARED[place] for place in DECLARED)


def test_a_field_that_goes_and_one_that_changes() -> None:
    found = fields.table(
        {
            "1": {"a": {"x": "int", "y": "int"}},
            "2": {"a": {"x": "int", "y": "str"}},
            "3": {"a": {"y": "str", "z": "bool"}},
        }
    )
    assert found == {
        "a": {"x": {"1": "int", "3": None}, "y": {"1": "int", "2": "str"}, "z": {"3": "bool"}}
    }
