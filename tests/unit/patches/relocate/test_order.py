"""Bodies of orders, and what a rank says of their rows."""

from typing import Any

import pytest

from patches.relocate.order import read_order
from patches.relocate.rank import wrong


def test_an_order_is_read() -> None:
    body = {"serial": 3, "layers": {"0": [1, 0], "12": [0, 1]}}
    assert read_order(body) == (3, {0: (1, 0), 12: (0, 1)})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, "an order is"),
        ({"serial": 1}, "an order is"),
        ({"serial": True, "layers": {"0": [0]}}, "serial"),
        ({"serial": 1, "layers": []}, "layers"),
        ({"serial": 1, "layers": {}}, "layers"),
        ({"serial": 1, "layers": {"-1": [0]}}, "no number"),
        ({"serial": 1, "layers": {"1": "01"}}, "list of expert numbers"),
        ({"serial": 1, "layers": {"1": [0, 1.0]}}, "list of expert numbers"),
    ],
)
def test_other_bodies_are_refused(body: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_order(body)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({1: (0, 1, 2, 2)}, ""),
        ({0: (0, 1, 2, 2)}, "layer 0 has no experts here"),
        ({1: (0, 1, 2)}, "4 slots, the order has 3"),
        ({1: (0, 1, 1, 1)}, r"needs a slot; look at \[2\]"),
        ({1: (0, 1, 2, 3)}, r"look at \[3\]"),
        ({1: (0, 1, 2, -1)}, r"look at \[-1\]"),
    ],
)
def test_rows_fit_the_model_or_are_refused(rows: Any, said: str) -> None:
    import re

    found = wrong(rows, [1, 2], 4, 3)
    assert bool(found) == bool(said) and re.search(said, found)
