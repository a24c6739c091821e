"""Load readings corrected by what was sent since; the request queue."""

import msgspec
import pytest

from tests.present import present
from toolkit.contract.events import LoadReading
from toolkit.decide.ledger import GRACE_S, SETTLED_S
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.rank import Rank
from toolkit.settings.router.config import RouterConfig

READING = LoadReading(running=1, used_tokens=9, total_tokens=9)


def rank() -> Rank:
    worker = {"name": "a", "role": "plain", "url": "http://127.0.0.1:1"}
    config = RouterConfig.model_validate({"workers": [worker]})
    return KnownWorkers(config).workers[0].ranks[0]


async def test_what_was_sent_after_a_reading_is_added_until_the_next_one() -> None:
    r = rank()
    assert r.load(0.0) is None
    r.read(READING, 10.0)
    lease = r.begin(100, 10.1)
    r.begin(50, 10.1)
    assert (present(r.load(10.1)).sent_requests, present(r.load(10.1)).sent_tokens) == (2, 150)
    r.read(READING, 10.1 + GRACE_S / 2)  # may have been taken before they arrived
    assert present(r.load(10.12)).sent_tokens == 150
    r.end(lease, 100, True)
    assert present(r.load(10.12)).sent_tokens == 50
    r.read(READING, 10.2)
    assert present(r.load(10.2)).sent_requests == 0


async def test_an_idle_worker_has_nothing_sent_to_it_for_ever() -> None:
    r = rank()
    r.read(READING, 10.0)
    r.begin(100, 10.01)
    assert present(r.load(10.02)).sent_requests == 1
    assert present(r.load(10.02 + SETTLED_S)).sent_requests == 0


async def test_the_pool_s_size_is_its_capacity() -> None:
    r = rank()
    r.read(msgspec.structs.replace(READING, capacity_tokens=90), 1.0)
    assert present(r.load(1.0)).usage == pytest.approx(0.1)


def test_workers_must_fit_together() -> None:
    plain = {"name": "a", "role": "plain", "url": "http://127.0.0.1:1"}
    decode = {"name": "b", "role": "decode", "url": "http://127.0.0.1:2"}
    for workers in ([decode], [plain, decode], [plain, plain], []):
        with pytest.raises(ValueError, match=r"workers|names"):
            RouterConfig.model_validate({"workers": workers})
    with pytest.raises(ValueError, match="bootstrap_port"):
        RouterConfig.model_validate({"workers": [{**decode, "role": "prefill"}]})
    with pytest.raises(ValueError, match="round_robin"):
        RouterConfig.model_validate({"workers": [plain], "decode_policy": "best"})
