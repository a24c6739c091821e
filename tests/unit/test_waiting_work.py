"""Router and DP controller count the same reading's waiting tokens alike."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.dp.loads import waiting
from toolkit.contract.events import LoadReading
from toolkit.decide.waiting_work import waiting_tokens
from toolkit.router.known_workers import KnownWorkers
from toolkit.settings.router.config import RouterConfig

WORKERS = [
    {"name": "p", "role": "prefill", "url": "http://127.0.0.1:1", "bootstrap_port": 3},
    {"name": "d", "role": "decode", "url": "http://127.0.0.1:2"},
]
PLAIN = [{"name": "w", "role": "plain", "url": "http://127.0.0.1:1"}]


@dataclass
class Figures:
    num_used_tokens: int
    num_total_tokens: int
    num_waiting_uncached_tokens: int


@pytest.mark.parametrize("side", ["prefill", "decode", "plain"])
@given(used=st.integers(0, 4000), more=st.integers(0, 900), uncached=st.integers(0, 900))
def test_one_snapshot_has_one_meaning(side: str, used: int, more: int, uncached: int) -> None:
    known_workers = KnownWorkers(
        RouterConfig.model_validate({"workers": PLAIN if side == "plain" else WORKERS})
    )
    (rank,) = known_workers.side(side)
    event = LoadReading(
        running=1,
        waiting=1,
        used_tokens=used,
        total_tokens=used + more,
        waiting_tokens=uncached,
        capacity_tokens=8192,
    )
    rank.read(event, 1.0)
    load = rank.load(1.0)
    assert load is not None
    figures = Figures(used, used + more, uncached)
    assert load.waiting_tokens == waiting(figures, side)  # type: ignore[arg-type]
    assert load.waiting_tokens == waiting_tokens(side, used, used + more, uncached)
