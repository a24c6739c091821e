"""SGLang's DP controller asks one of our policies which rank gets a request.

For people who keep SGLang's router in front, or none: there the rank is chosen inside the worker,
by `--load-balance-method`. `patches.dp_method` has put SGLang's `total_tokens` where a policy of
ours was named, and this file replaces what that method does. A request that names its rank
(`routed_dp_rank`) still goes there. The controller decides at once, request by request: it has no
pool, requests queue at their rank. Its loop sleeps on its socket in place of polling it without
end, so that it looks at the ranks' snapshots every 20 ms whether requests come or not: only who
looks on knows how long a rank has been silent.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from patches.base import Hook, Patch, Process
from patches.dp_balancer import Balancer
from patches.dp_method import RECORD_VARIABLE, chosen
from patches.dp_progress import Progressed
from patches.dp_register import Register, announce

log = logging.getLogger("toolkit.dp")

CONTROLLER = "sglang.srt.managers.data_parallel_controller.DataParallelController"
LOOK_S = 0.02
BURST_S = 0.001
"""Requests of one burst are decided on one reading: what was sent since is added to it anyway."""
_BALANCER = "toolkit_balancer"
_LOOKED = "toolkit_looked"
_REGISTER = "toolkit_register"


def _start(original: Any, controller: Any) -> None:
    original(controller)
    name = chosen()
    if name is None:
        return
    from sglang.srt.runtime_context import get_disagg

    mode = get_disagg().disaggregation_mode
    balancer = Balancer(name, mode, len(controller.workers), _recorded(name))
    setattr(controller, _BALANCER, balancer)
    if mode == "prefill":
        setattr(controller, _REGISTER, Register())
    dispatcher = controller._request_dispatcher
    dispatcher += type(dispatcher)([(Progressed, lambda news: balancer.progressed(news.requests))])
    log.info("DP ranks are chosen by %s", name)


def _recorded(name: str) -> Any:
    path = os.environ.get(RECORD_VARIABLE)
    if not path:
        return None
    from toolkit.decisions import Recorded
    from toolkit.policies import make_policy

    return Recorded(make_policy(name), open(path, "a", encoding="utf-8"))  # open while we live


def _look(controller: Any, balancer: Balancer) -> None:
    now = time.monotonic()
    if now - getattr(controller, _LOOKED, 0.0) >= BURST_S:
        setattr(controller, _LOOKED, now)
        balancer.look(controller.load_snapshot_reader.read_all(), now)


def _refresh(original: Any, controller: Any) -> None:
    """Before each dispatch, and once before a batch."""
    balancer = getattr(controller, _BALANCER, None)
    if balancer is None:
        original(controller)
    else:
        _look(controller, balancer)


def _dispatch(original: Any, controller: Any, req: Any) -> None:
    balancer = getattr(controller, _BALANCER, None)
    if balancer is None:
        original(controller, req)
        return
    if getattr(req, "routed_dp_rank", None) is not None:
        _announce(controller, req, req.routed_dp_rank)
    if controller.maybe_external_dp_rank_routing(req):
        return
    from sglang.srt.managers.io_struct import sock_send

    usable = [
        worker is not None and up
        for worker, up in zip(controller.workers, controller.status, strict=True)
    ]
    rank = balancer.choose(req, usable, time.monotonic())
    if rank is None:
        # As SGLang's round robin does; the server then ends and is started again.
        raise RuntimeError("No active DP workers are available for routing.")
    _announce(controller, req, rank)
    sock_send(controller.workers[rank], req)


def _announce(controller: Any, req: Any, rank: int) -> None:
    """Where decode has to fetch the KV of a prefill."""
    register = getattr(controller, _REGISTER, None)
    if register is not None:
        from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST
        from sglang.srt.runtime_context import get_disagg

        port = get_disagg().disaggregation_bootstrap_port
        announce(register, req, rank, port, FAKE_BOOTSTRAP_HOST)


def _route_named(original: Any, controller: Any, req: Any) -> bool:
    named: bool = original(controller, req)
    balancer = getattr(controller, _BALANCER, None)
    if named and balancer is not None:
        balancer.sent_elsewhere(req, req.routed_dp_rank, time.monotonic())
    return named


def _loop(original: Any, controller: Any) -> None:
    balancer = getattr(controller, _BALANCER, None)
    if balancer is None:
        original(controller)
        return
    import zmq
    from sglang.srt.managers.io_struct import sock_recv

    while True:
        controller.soft_watchdog.feed()
        try:
            req = sock_recv(controller.recv_from_tokenizer, flags=zmq.NOBLOCK)
        except zmq.ZMQError:
            controller.recv_from_tokenizer.poll(LOOK_S * 1000)
            _look(controller, balancer)
            continue
        controller._request_dispatcher(req)


PATCH = Patch(
    name="dp_controller",
    why="the DP rank is to be chosen by our policies behind SGLang's router too",
    processes=frozenset({Process.CONTROLLER}),
    hooks=(
        Hook(f"{CONTROLLER}.init_dispatcher", _start, ("self",)),
        Hook(f"{CONTROLLER}.refresh_load_budget", _refresh, ("self",)),
        Hook(f"{CONTROLLER}.total_tokens_scheduler", _dispatch, ("self", "req")),
        Hook(f"{CONTROLLER}.maybe_external_dp_rank_routing", _route_named, ("self", "req")),
        Hook(f"{CONTROLLER}.event_loop", _loop, ("self",)),
    ),
    requires=(
        "sglang.srt.managers.io_struct.sock_send",
        "sglang.srt.managers.io_struct.sock_recv",
        "sglang.srt.runtime_context.get_disagg",
        "sglang.srt.disaggregation.utils.FAKE_BOOTSTRAP_HOST",
        "sglang.srt.utils.watchdog.Watchdog.feed",
        "sglang.srt.managers.load_snapshot.ShmLoadSnapshotReader.read_all",
    ),
)
