"""What a body costs grows with its size, whatever is in it."""

import sys
from functools import partial
from types import FrameType
from typing import Any

import pytest

from tests.cpu_time import TRIES, cpu_s
from tests.hostile_bodies import HOSTILE
from tests.unit.router.worst_bodies import ROWS, Make, Worst, raw, rules
from toolkit.router.errors import ApiError
from toolkit.router.request import Wanted
from toolkit.router.splitting import parse
from toolkit.router.validate.models import prepare
from toolkit.settings.router.permissions import ALLOWABLE

SIZES = (4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024)
ALLOW = frozenset(ALLOWABLE)
GROWTH = 8.0
"""The most that four times the size may cost; four and some is right, sixteen is a square."""
LEAST_S = 0.002
"""Less is not told apart from nothing."""


def read(path: str, body: bytes) -> None:
    """As the router does, with all that policies may want to know; a refusal must be a 400."""
    try:
        parse(path, body, vocabulary=100_000, allow=ALLOW, wanted=Wanted(True, True, True))
    except ApiError as error:
        assert error.status == 400, error.message
        assert len(error.body("chat")) < 100_000


@pytest.fixture(scope="module", autouse=True)
def made() -> None:
    prepare(ALLOW)


EVERY: dict[str, tuple[str, Make]] = {
    **{name: (row.path, row.make) for name, row in ROWS.items()},
    **{each.name: (each.path, each.make) for each in HOSTILE},
}


@pytest.mark.parametrize(("path", "make"), EVERY.values(), ids=EVERY)
def test_four_times_the_size_costs_about_four_times_as_much(path: str, make: Make) -> None:
    smaller = b""
    for size in SIZES:
        body = raw(make(size))
        if smaller:
            for _ in range(TRIES):
                taken = [
                    max(cpu_s(partial(read, path, each), tries=1), LEAST_S)
                    for each in (smaller, body)
                ]
                if taken[1] < GROWTH * taken[0]:
                    break
            else:
                raise AssertionError(f"{size // 4} and {size} bytes took {taken} s")
        smaller = body


def test_every_rule_has_a_row() -> None:
    assert rules() - {row.reads for row in ROWS.values()} == set()


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_gets_to_what_it_is_meant_for(row: Worst) -> None:
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = (
            frame.f_globals["__name__"].removeprefix("toolkit.router.").removeprefix("validate.")
        )
        called.add(f"{module}.{frame.f_code.co_qualname}".replace(".<locals>", ""))

    body = raw(row.make(2000))
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        read(row.path, body)
    finally:
        sys.setprofile(before)
    assert row.reads in called
