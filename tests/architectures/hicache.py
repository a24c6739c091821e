"""Hierarchical cache on prefill: KV that comes back from host memory or a store, with real workers.

The answers must stay. What comes back has no experts: no forward of this worker computed it. So
the signature says that it is incomplete, and the router goes by load; experts that were asked for
are marked as not whole.
"""

import asyncio
from pathlib import Path
from typing import Any

from tests.architectures import deployment
from tests.architectures.configs import Architecture
from tests.architectures.reference import Reference
from tests.architectures.trial import Trial, connected
from tests.e2e import calls
from toolkit.launch.running import Running

LENGTH = 300
PROMPTS = 5
POOL = 1024
"""Tokens of KV: three prompts, so that the first ones leave for the host."""
HOST: dict[str, Any] = {
    "enable-hierarchical-cache": True,
    "hicache-write-policy": "write_through",
    "hicache-ratio": 4.0,
    "hicache-io-backend": "direct",
    "hicache-mem-layout": "layer_first",
}
STORE: dict[str, Any] = HOST | {
    "hicache-storage-backend": "file",
    "hicache-host-memory-mode": "buffer_only",
    "hicache-storage-prefetch-policy": "wait_complete",
}
KINDS = {"host memory": HOST, "external store": STORE}


def contents(
    architecture: Architecture, model: Path, args: dict[str, Any], store: Path
) -> dict[str, Any]:
    """A deployment of one prefill worker with the cache, and one decode worker."""
    made = deployment.described(architecture, model, decodes=1, kv_tokens=POOL, prefill_args=args)
    made["prefill"]["env"]["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(store)
    return made


async def returning(up: Running, architecture: Architecture, reference: Reference) -> str:
    """Prompts that have left the pool are asked for again; how many of them came back."""
    asked = [calls.prompt(f"hicache-{architecture.name}-{n}", LENGTH) for n in range(PROMPTS)]
    back = 0
    async with connected(up, architecture) as client:
        first = [await client.ask(ids) for ids in asked]
        for ids, before in zip(asked, first, strict=True):
            assert before.complete and before.whole and before.cached == 0
            assert (before.counts == reference.counts(ids)).all()
        await asyncio.sleep(1.0)  # what is written through is on its way
        for ids, before in zip(asked, first, strict=True):
            again = await client.ask(ids)
            assert again.ids == before.ids, "what came back says something else"
            assert (again.decode == before.decode).all()
            if again.cached and not again.complete:
                back += 1
                assert not again.whole, "experts of slots that were loaded count as captured"
            elif again.complete:  # still in the pool, or run again
                assert (again.counts == before.counts).all()
    assert back, "nothing came back"
    return f"{back} of {PROMPTS} prompts came back"


async def parked(up: Running, architecture: Architecture, reference: Reference) -> None:
    """Prompts that came back are parked, and fetched half a second later, in the other order."""
    trial = Trial(up, architecture, [], reference)
    asked = [calls.prompt(f"hicache-{architecture.name}-{n}", LENGTH) for n in (1, 2)]
    bodies = [calls.greedy(ids, 12, stream=False) for ids in asked]
    answers = await calls.all_of(up.router_url, bodies, 1)
    assert [answer.error for answer in answers] == ["", ""]
    await trial.parked(asked, [answer.ids for answer in answers])
