"""What experts make a step take, where placements age."""

import numpy as np
import pytest

from toolkit.placement import Placement, Topology, linear
from toolkit.simulate.costs.links import Link, Links
from toolkit.simulate.expert_time import ExpertTime
from toolkit.simulate.experts import SimulatedExperts

TOPOLOGY = Topology(4, 2)
COUNTS = np.random.default_rng(0).integers(0, 9, (5, 2, 6))
PLACEMENT = Placement(np.array([[0, 1, 2, 3, 0, 1, 4, 5]] * 2), 6, 4)
LINK = Link(per_node_byte=1e-9, per_byte=1e-8, element_bytes=1)
LINKS = Links(hidden=10, gpus_per_node=2, dispatch=LINK, combine=LINK, replicas="nearest")
PLAIN = SimulatedExperts(COUNTS, np.full(5, 10))
NEW, OLD = PLAIN.placed(PLACEMENT), PLAIN.placed(linear(2, 6, TOPOLOGY, 2))


def test_who_comes_and_goes_leaves_nothing() -> None:
    found = ExpertTime(NEW, LINKS, 4)
    found.add(3, 1)
    found.look()
    alone = found.busiest, found.crossing_s
    found.add(2, 0)
    found.look()
    assert found.busiest > alone[0] and found.crossing_s > alone[1]
    found.remove(2, 0)
    found.look()
    assert (found.busiest, found.crossing_s) == pytest.approx(alone, rel=1e-5)
    assert found.moving_s == 0


@pytest.mark.parametrize("fresh", [0.0, 0.25, 1.0])
def test_what_ages_is_in_between(fresh: float) -> None:
    figures = []
    for each in (NEW, OLD, NEW.aged(OLD, fresh, 0.5)):
        time = ExpertTime(each, LINKS, 4)
        time.add(0, 0)
        time.add(3, 3)
        time.look()
        figures.append((time.busiest, time.crossing_s, time.moving_s))
    for one, two, both, more in zip(*figures, (0.0, 0.0, 0.5), strict=True):
        assert both == pytest.approx(fresh * one + (1 - fresh) * two + more)


def test_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="and the rest of"):
        NEW.aged(PLAIN, 0.5, 0.0)
    with pytest.raises(ValueError, match="and the rest of"):
        NEW.aged(OLD, 1.5, 0.0)
