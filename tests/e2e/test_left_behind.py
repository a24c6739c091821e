"""A worker whose processes are all killed at once removes nothing of its own: the launcher does."""

import contextlib
from pathlib import Path

import psutil
import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.left_behind import File, MemoryWatch, mapped_by, there
from tests.e2e.reference import Reference
from tests.present import present
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TOKENS = 8
RANKS = {"tp": 2, "dp": 2, "dp_attention": True}
KINDS = ("sem.mp-", "sgl_shm_mq_", "sglang_loads_")
"""Of files that SGLang makes for two ranks on the CPU; the launcher knows others, too."""


def processes(up: Running) -> list[psutil.Process]:
    leader = psutil.Process(present(up.workers[0].pid))
    return [leader, *leader.children(recursive=True)]


def kinds(files: set[File]) -> set[str]:
    return {kind for kind in KINDS for name, _ in files if name.startswith(kind)}


def test_a_worker_that_is_killed_leaves_no_shared_memory(
    tmp_path: Path, reference: Reference
) -> None:
    role = RANKS | {"kv_tokens": 8192, "max_running": 8}
    described = {"name": "left", "mode": "plain", "worker": role, "router": {"kind": "none"}}
    with contextlib.closing(MemoryWatch()) as watch:
        with deployed(described, tmp_path) as up:
            first = mapped_by(processes(up))
            assert kinds(first) == set(KINDS)

            for process in processes(up):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            up.wait_ready("worker-0", restarts=1)

            assert not first & there()
            second = mapped_by(processes(up))
            assert kinds(second) == set(KINDS)

            async def answered() -> calls.Answer:
                async with calls.session() as http:
                    return await calls.generate(http, up.router_url, body)

            body = calls.greedy(calls.prompt("after", 60), TOKENS, stream=True)
            answer = calls.run(answered())
            assert not answer.error
            assert answer.ids == reference.greedy(body["input_ids"], TOKENS, answer.ids)
        assert not second & there()
        assert watch.left() == []
