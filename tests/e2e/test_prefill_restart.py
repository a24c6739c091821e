"""A prefill worker that came back so fast that no heartbeat missed it."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from tests.e2e.workers import settled, state

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TOKENS = 8


def test_decode_finds_it_without_a_failed_heartbeat(tmp_path: Path, reference: Reference) -> None:
    """Else the KV of the first request behind it never comes, and SGLang gives up after 60 s."""
    role = {"kv_tokens": 8192, "max_running": 8}
    described = {
        "name": "returning",
        "prefill": role,
        "decode": role | {"env": {"SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "600"}},
        "router": {"kind": "toolkit"},
    }
    with deployed(described, tmp_path) as up:

        async def answered(name: str) -> None:
            body = calls.greedy(calls.prompt(name, 60), TOKENS, stream=True)
            async with calls.session() as http:
                answer = await calls.generate(http, up.router_url, body)
            assert not answer.error
            assert answer.ids == reference.greedy(body["input_ids"], TOKENS, answer.ids)

        calls.run(answered("before"))
        for number in range(2):
            worker = up.worker("prefill-0")
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            up.wait_ready("prefill-0", worker.restarts + 1)
            calls.run(settled(up))
            calls.run(answered(f"behind-{number}"))
        after = calls.run(state(up.router_url))
        assert (after["retried"], after["resumed"]) == (0, 0)
        assert up.worker("decode-0").restarts == 0
