"""Load readings corrected by what was sent since; the request queue."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.present import present
from toolkit.contract.events import LoadReading
from toolkit.decide.ledger import GRACE_S, SETTLED_S
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.worker import Rank
from toolkit.settings.router.config import RouterConfig

READING = LoadReading(running=1, used_tokens=9, total_tokens=9)


def rank() -> Rank:
    worker = {"name": "a", "role": "plain", "url": "http://127.0.0.1:1"}
    config = RouterConfig.model_validate({"workers": [worker]})
    return KnownWorkers(config).workers[0].ranks[0]


def in_loop(check: Any) -> None:
    async def inner() -> None:
        result = check()
        if asyncio.iscoroutine(result):
            await result

    asyncio.run(inner())


def test_what_was_sent_after_a_reading_is_added_until_the_next_one() -> None:
    def check() -> None:
        r = rank()
        assert r.load(0.0) is None
        r.read(READING, 10.0)
        lease = r.ledger.begin(100, 10.1)
        r.ledger.begin(50, 10.1)
        assert (present(r.load(10.1)).sent_requests, present(r.load(10.1)).sent_tokens) == (2, 150)
        r.read(READING, 10.1 + GRACE_S / 2)  # may have been taken before they arrived
        assert present(r.load(10.12)).sent_tokens == 150
        r.ledger.end(lease, 100, 10.13)
        assert present(r.load(10.12)).sent_tokens == 50
        r.read(READING, 10.2)
        assert present(r.load(10.2)).sent_requests == 0

    in_loop(check)


def test_an_idle_worker_has_nothing_sent_to_it_for_ever() -> None:
    def check() -> None:
        r = rank()
        r.read(READING, 10.0)
        r.ledger.begin(100, 10.01)
        assert present(r.load(10.02)).sent_requests == 1
        assert present(r.load(10.02 + SETTLED_S)).sent_requests == 0

    in_loop(check)


def test_the_pool_s_size_is_its_capacity() -> None:
    def check() -> None:
        r = rank()
        r.read(msgspec.structs.replace(READING, capacity_tokens=90), 1.0)
        assert present(r.load(1.0)).usage == pytest.approx(0.1)

    in_loop(check)


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
