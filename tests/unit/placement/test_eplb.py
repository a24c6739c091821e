"""SGLang's EPLB through our baseline: the published example, and SGLang's own choice of variant."""

from importlib.util import find_spec

import numpy as np
import pytest

from tests.unit.placement.cases import WEIGHT
from toolkit.placement import Topology, Traffic, eplb

pytestmark = pytest.mark.skipif(not find_spec("sglang"), reason="the baseline calls SGLang")

TABLE = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]


def traffic(groups: int | None) -> Traffic:
    return Traffic(np.array(WEIGHT), np.zeros((1, 12, 12)), groups=groups)


@pytest.mark.slow
def test_deepseeks_published_example() -> None:
    assert eplb(traffic(4), Topology(8, 4), 4).physical_to_logical.tolist() == TABLE


def test_without_groups_it_is_the_global_policy() -> None:
    placement = eplb(traffic(None), Topology(8, 4), 4)
    assert placement.physical_to_logical.tolist() != TABLE
    load = np.einsum("le,leg->lg", WEIGHT, placement.held() / placement.replicas()[:, :, None])
    hierarchical = eplb(traffic(4), Topology(8, 4), 4)
    tied = np.einsum("le,leg->lg", WEIGHT, hierarchical.held() / hierarchical.replicas()[..., None])
    # Free of groups and nodes, it balances better.
    assert (load.max(axis=1) <= tied.max(axis=1)).all()
