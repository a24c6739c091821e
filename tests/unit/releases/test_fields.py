"""What request validation knows of each release's fields is what the release declares."""

import pytest

from tests.releases import fetch, fields
from tests.releases.fetch import FITTED
from toolkit.router.validate.declared import DECLARED, RELEASES, type_in
from toolkit.router.validate.endpoints import ENDPOINTS

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
AGAIN = "python -m tests.releases.fields --record"


@pytest.mark.parametrize("release", FITTED)
def test_fields_are_those_that_were_recorded(release: str) -> None:
    found = fields.fields(fetch.source(release))
    assert found.keys() == DECLARED.keys(), AGAIN
    for place, rows in found.items():
        kinds = {name: type_in(place, name, release) for name in DECLARED[place]}
        recorded = {name: kind for name, kind in kinds.items() if kind is not None}
        assert rows == recorded, f"{place}: {AGAIN}, and say what becomes of what is new"


def test_every_endpoint_and_release_is_recorded() -> None:
    assert RELEASES == FITTED
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
