"""All-to-all by a table: what it was fitted to, and who is charged."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from toolkit.simulate.costs.links import COPIES, DEEPEP, Link, Links, MeasuredLinks, deepep, fitted
from toolkit.simulate.errors import SimulateError


def even(gpus: int) -> np.ndarray:
    """[1, G, 3] copies of the table's own traffic."""
    copies = np.zeros((1, gpus, 3))
    copies[..., 0] = COPIES / gpus
    copies[..., 1] = COPIES * 7 / gpus
    copies[..., 2] = COPIES * (gpus - 8) / gpus
    return copies


@pytest.mark.parametrize("row", DEEPEP)
def test_what_was_measured_comes_out(row: MeasuredLinks) -> None:
    links, copies = deepep(), even(row.gpus)
    found = links.seconds(copies, copies)[0]
    assert found == pytest.approx(row.dispatch_s + row.combine_s, rel=0.1)


def test_speeds_are_those_of_the_hardware() -> None:
    # 50 GB/s of network and 160 of NVLink a GPU, as the table's page says.
    for link in (deepep().dispatch, deepep().combine):
        assert 35e9 < 1 / link.per_byte < 51e9
        assert 100e9 < 1 / link.per_node_byte < 170e9


def test_the_slowest_rank_is_charged_whichever_way() -> None:
    link = Link(per_node_byte=1.0, per_byte=10.0, element_bytes=1.0)
    links = Links(hidden=1, dispatch=link, combine=link)
    none = np.zeros((1, 4, 3))
    sends, receives = none.copy(), none.copy()
    sends[0, :, 2] = 2
    assert links.seconds(sends, none)[0] == 40
    receives[0, 3, 2] = 5  # one GPU receives more than any sends
    assert links.seconds(sends, receives)[0] == 100
    assert links.seconds(receives, sends)[0] == 100
    sends[0, 0, 1] = 70  # inside the node, beside the network
    assert links.seconds(sends, receives)[0] == 140
    own = none.copy()
    own[..., 0] = 99
    assert links.seconds(own, own)[0] == 0


def test_more_across_takes_longer() -> None:
    links = deepep()
    times = [links.seconds(each, each)[0] for each in (even(16), even(32), even(64))]
    assert all(one < other for one, other in pairwise(times))


@pytest.mark.parametrize("table", [DEEPEP[1:], DEEPEP[:2], ()])
def test_a_table_that_says_too_little_is_refused(table: Any) -> None:
    with pytest.raises(SimulateError, match="on one node"):
        fitted(table, (1.0, 2.0))
