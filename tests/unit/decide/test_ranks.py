"""What is known of a worker when it has been away."""

import pytest

from tests.unit.decide.hosting import DeciderHost
from tests.unit.decide.test_ledger import reading
from toolkit.decide import messages as m


@pytest.mark.parametrize("events", [True, False], ids=["tells events", "is asked"])
@pytest.mark.parametrize("greets", [False, True], ids=["same process", "greets"])
def test_the_load_of_a_worker_that_was_away(greets: bool, events: bool) -> None:
    """An idle one has no reason to publish it again. A new process says its own, and a worker
    without events is asked for it."""
    host = DeciderHost()
    rank = host.ranks.rank(("decode-0", 0))
    host.tell(m.LoadRead(rank.key, reading(1, 50)))
    host.tell(m.WorkerDown("decode-0"))
    assert rank.load(host.now) is None
    if greets:
        host.tell(m.WorkerGreeted("decode-0", 4, 0))
    host.tell(m.WorkerUp("decode-0", events))
    load = rank.load(host.now)
    if events and not greets:
        assert load is not None and load.used_tokens == 50
    else:
        assert load is None
