"""When a worker is expected back; `tests/unit/router/test_returns.py` has what the router does."""

from __future__ import annotations

from toolkit.decide.returns import Return, Returns


def test_who_never_went_has_no_absence_to_measure() -> None:
    known = Returns()
    known.came("w", 5.0)
    known.went("w", 10.0)
    assert known.of("w") is None, "nothing is known of its starts"
    known.came("w", 14.0)
    known.went("w", 20.0)
    assert known.of("w") == Return(24.0, 4.0)
