"""What `toolkit status` says of a worker."""

import time

import pytest

from toolkit.cli.status import status_of

SINCE = 1_800_000_000.0
AT = time.strftime("%H:%M:%S", time.localtime(SINCE))


@pytest.mark.parametrize(
    ("status", "stuck", "shown"),
    [
        ("ready", None, "ready"),
        ("ready", {"state": "suspect", "since": SINCE}, f"suspect since {AT}"),
        ("stuck", {"state": "stuck", "since": SINCE}, f"stuck since {AT}"),
        ("restarting", {"state": "stuck", "since": SINCE}, "restarting"),
    ],
)
def test_a_worker_that_makes_no_step_is_shown_with_since_when(
    status: str, stuck: dict[str, object] | None, shown: str
) -> None:
    assert status_of({"status": status, "stuck": stuck}) == shown
