"""Workers that start at once."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.gpu.servers import abreast


def test_all_are_entered_at_once_and_left_in_the_end() -> None:
    meet, left = threading.Barrier(2, timeout=30), []

    @contextmanager
    def worker(name: str) -> Iterator[str]:
        meet.wait()  # for the other to start, too
        yield f"http://{name}"
        left.append(name)

    with ExitStack() as stack:
        urls = abreast(stack, {name: worker(name) for name in ("on", "off")})
        assert urls == {"on": "http://on", "off": "http://off"} and not left
    assert sorted(left) == ["off", "on"]


def test_where_one_fails_the_other_is_left() -> None:
    left = []

    @contextmanager
    def fails() -> Iterator[str]:
        raise RuntimeError("no memory")
        yield ""

    @contextmanager
    def starts() -> Iterator[str]:
        try:
            yield "http://off"
        finally:
            left.append("off")

    with pytest.raises(RuntimeError, match="no memory"), ExitStack() as stack:
        abreast(stack, {"on": fails(), "off": starts()})
    assert left == ["off"]
