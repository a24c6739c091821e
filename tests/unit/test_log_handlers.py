"""What one test makes of this process's log handlers is gone for the next one."""

import logging

import pytest

from toolkit.limited_logs import BURST, limit_all

log = logging.getLogger("toolkit.handlers")


@pytest.mark.parametrize("_turn", range(2))
def test_limits_that_a_command_sets_are_of_its_own_test(
    _turn: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2 * BURST):
        log.warning("before")
    assert caplog.text.count("before") == 2 * BURST
    limit_all()
    for _ in range(2 * BURST):
        log.warning("after")
    assert 0 < caplog.text.count("after") <= BURST
