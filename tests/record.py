"""How long each test took, and each start of real workers: lines of JSON in one file.

The file is named by `TOOLKIT_TEST_RECORD`, which `python3 -m toolkit.setup test` sets; it prints
what it finds there at the end. Every process of a run appends to it, one write a line, so that
lines never mix.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.setup.timings import RECORD

ERROR_CHARACTERS = 1000


def line(**fields: object) -> None:
    """Append one line; nothing where nobody asked for a record."""
    path = os.environ.get(RECORD)
    if path:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, json.dumps(fields).encode() + b"\n")
        finally:
            os.close(file)


def name(node: str) -> str:
    """The id of a test without the group that pytest-xdist puts behind it (`...]@group`)."""
    at = node.rfind("@")
    return node[:at] if at > node.rfind("]") else node


def test(name: str, seconds: float) -> None:
    """One phase of a test: setup, the call, or teardown."""
    line(test=name, seconds=round(seconds, 3))


def failure(name: str, said: str) -> None:
    """What pytest prints of it: the lines of the error itself, where there are such."""
    lines = said.splitlines()
    errors = [each[1:].strip() for each in lines if each.startswith("E ")]
    line(failed=name, why="\n".join(errors or lines[-1:])[:ERROR_CHARACTERS])


def start(name: str, seconds: float) -> None:
    """One start of a deployment or a worker, from the first process until it answers."""
    line(
        start=name,
        seconds=round(seconds, 1),
        by=os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0],
    )


@contextmanager
def starting(name: str) -> Iterator[None]:
    """Records what its block takes as a start, where it does not fail."""
    begin = time.monotonic()
    yield
    start(name, time.monotonic() - begin)
