"""A decode worker forgets where a prefill worker's ranks were once that worker may have restarted.

Decode caches each prefill rank's address (`connection_pool`) and forgets it after two failed
heartbeats (`srt/disaggregation/common/conn.py:1413`, SGLang 0.5.21). A prefill that is killed and
restarted on the same bootstrap port answers heartbeats again long before it serves, so only one
may fail, or none: decode then sends its metadata to the dead rank's port, and every later request
to that prefill hangs until a time-out of minutes.

Here each request asks whether a connection to these ranks was lost since the last one: then
the addresses are fetched anew, and the decode rank tells the new process of its memory. A host that
dies closes no connection. So a single failed heartbeat makes the addresses suspect, too, and the
next success drops them. Transfers under way are left alone: the blip may have been the network's.
"""

from typing import Protocol

from patches.base import EITHER, Hook, Patch
from patches.layers import Original
from patches.pd.rank_sockets import Peer, RankSockets
from patches.scheduler_state import current
from patches.sglang_types import KvReceiver, Rank, ReceivingManager

COMMON = "sglang.srt.disaggregation.common.conn"
MANAGER = f"{COMMON}.CommonKVManager"
RECEIVER = f"{COMMON}.CommonKVReceiver"


class FailureCounts(dict[str, int]):
    """SGLang's `heartbeat_failures`, which also remembers who has failed since the last success."""

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__(counts)
        self.suspects: set[str] = set()

    def __setitem__(self, address: str, failures: int) -> None:
        if failures > 0:
            self.suspects.add(address)
        super().__setitem__(address, failures)


class WatchedManager(ReceivingManager, Protocol):
    """A manager whose failures are watched."""

    heartbeat_failures: FailureCounts


def _watch_failures(original: Original[object], manager: ReceivingManager) -> object:
    manager.heartbeat_failures = FailureCounts(manager.heartbeat_failures)
    current().get(RankSockets).start()
    return original(manager)


def _forget_suspect(original: Original[None], manager: WatchedManager, bootstrap_addr: str) -> None:
    original(manager, bootstrap_addr)
    suspects = manager.heartbeat_failures.suspects
    if bootstrap_addr not in suspects:
        return
    suspects.discard(bootstrap_addr)
    with manager.connection_lock:
        for key in [key for key in manager.connection_pool if key.startswith(bootstrap_addr)]:
            del manager.connection_pool[key]
        manager.prefill_info_table.pop(bootstrap_addr, None)


def _of_living_ranks(original: Original[None], receiver: KvReceiver) -> None:
    original(receiver)
    if lost := _lost(receiver):
        _forget(receiver, lost)
        original(receiver)
        _lost(receiver)  # from now on those are watched that it has now


def _lost(receiver: KvReceiver) -> dict[str, Peer]:
    """Of the request's ranks, by their endpoints."""
    peers: dict[str, Peer] = {}
    sockets = current().get(RankSockets)
    for info in receiver.bootstrap_infos or ():
        endpoint = _endpoint(info)
        peers[endpoint] = sockets.peer(endpoint, receiver._connect_to_bootstrap_server(info)[0])
    return {endpoint: peer for endpoint, peer in peers.items() if peer is not Peer.SAME}


def _forget(receiver: KvReceiver, lost: dict[str, Peer]) -> None:
    """What was known of these ranks."""
    manager = receiver.kv_mgr
    with manager.connection_lock:
        pool = manager.connection_pool
        for key in [key for key, ranks in pool.items() if any(_endpoint(r) in lost for r in ranks)]:
            del pool[key]
    for endpoint, peer in lost.items():
        if peer is Peer.GONE:  # what else was sent there would wait for ever
            receiver.disconnect_endpoint(endpoint)


def _endpoint(info: Rank) -> str:
    from sglang.srt.utils.network import NetworkAddress

    endpoint: str = NetworkAddress(info["rank_ip"], int(info["rank_port"])).to_tcp()
    return endpoint


PATCH = Patch(
    name="prefill_restart",
    why="requests to a prefill that restarted quickly would hang on its old address",
    processes=EITHER,
    hooks=(
        Hook(f"{MANAGER}._start_heartbeat_checker_thread", _watch_failures, ("self",)),
        Hook(f"{MANAGER}._on_heartbeat_success", _forget_suspect, ("self", "bootstrap_addr")),
        Hook(f"{RECEIVER}._setup_bootstrap_infos", _of_living_ranks, ("self",)),
    ),
    requires=(
        f"{MANAGER}._handle_node_failure",
        f"{RECEIVER}._connect_to_bootstrap_server",
        f"{RECEIVER}.disconnect_endpoint",
        "sglang.srt.utils.network.NetworkAddress.to_tcp",
    ),
)
