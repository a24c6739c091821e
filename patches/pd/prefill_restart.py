"""A decode worker forgets where a prefill worker's ranks were once that worker may have restarted.

Decode caches each prefill rank's address (`connection_pool`) and forgets it after two failed
heartbeats (`srt/disaggregation/common/conn.py:1413`, SGLang 0.5.21). A prefill that is killed and
restarted on the same bootstrap port answers heartbeats again long before it serves, so only one
may fail: decode then sends its metadata to the dead rank's port, and every later request to that
prefill hangs until a time-out of minutes. Here a single failure suffices to make the addresses
suspect, and the next success drops them; the next request fetches them anew. Transfers under way
are left alone: the blip may have been the network's.
"""

from __future__ import annotations

from typing import Any

from patches.base import EITHER, Hook, Patch

MANAGER = "sglang.srt.disaggregation.common.conn.CommonKVManager"


class FailureCounts(dict[str, int]):
    """SGLang's `heartbeat_failures`, which also remembers who has failed since the last success."""

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__(counts)
        self.suspects: set[str] = set()

    def __setitem__(self, address: str, failures: int) -> None:
        if failures > 0:
            self.suspects.add(address)
        super().__setitem__(address, failures)


def _watch_failures(original: Any, manager: Any) -> Any:
    manager.heartbeat_failures = FailureCounts(manager.heartbeat_failures)
    return original(manager)


def _forget_suspect(original: Any, manager: Any, bootstrap_addr: str) -> None:
    original(manager, bootstrap_addr)
    suspects = manager.heartbeat_failures.suspects
    if bootstrap_addr not in suspects:
        return
    suspects.discard(bootstrap_addr)
    with manager.connection_lock:
        for key in [key for key in manager.connection_pool if key.startswith(bootstrap_addr)]:
            del manager.connection_pool[key]
        manager.prefill_info_table.pop(bootstrap_addr, None)


PATCH = Patch(
    name="prefill_restart",
    why="requests to a prefill that restarted quickly would hang on its old address",
    processes=EITHER,
    hooks=(
        Hook(f"{MANAGER}._start_heartbeat_checker_thread", _watch_failures, ("self",)),
        Hook(f"{MANAGER}._on_heartbeat_success", _forget_suspect, ("self", "bootstrap_addr")),
    ),
    requires=(f"{MANAGER}._handle_node_failure",),
)
