"""SGLang's DP controller asks one of our policies which rank gets a request.

For people who keep SGLang's router in front, or none: there the rank is chosen inside the worker,
by `--load-balance-method`. `patches.dp.method` has put SGLang's `total_tokens` where a policy of
ours was named, and this file replaces what that method does. A request that names its rank
(`routed_dp_rank`) still goes there. The controller decides at once, request by request: it has no
pool, requests queue at their rank.

Its loop, with a policy of ours or without, sleeps on its socket in place of polling it without end,
which keeps a core of every server busy that has several ranks. With a policy it wakes every 20 ms
to look at the ranks' snapshots: only who looks on knows how long a rank has been silent. It also
does where ranks send their loads over the network (DP attention over several nodes) and SGLang's
`total_tokens` or `total_requests` makes the controller their only receiver: SGLang would receive
them when it dispatches the next request, and until then everybody on node 0 would read old ones.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from patches.base import Hook, Patch, Process, refuse
from patches.dp import layout
from patches.dp.balancer import Balancer
from patches.dp.hold import Released
from patches.dp.loads import reserved_tokens
from patches.dp.locality import DpLocality
from patches.dp.method import chosen
from patches.dp.progress import Progressed
from patches.dp.register import Register, announce
from patches.layers import Original
from patches.sglang_types import Controller, Tokenized
from toolkit.contract.variables import DP_PROFILE_VARIABLE, DP_RECORD_VARIABLE
from toolkit.limited_logs import limited_logger
from toolkit.policies.base import Policy
from toolkit.policies.dp_method import by_signature

if TYPE_CHECKING:
    import numpy as np

log = limited_logger("toolkit.dp")

CONTROLLER = "sglang.srt.managers.data_parallel_controller.DataParallelController"
LOOK_S = 0.02
IDLE_S = 1.0
"""Where there is nothing to look at; the watchdog wants to be fed."""
BURST_S = 0.001
"""Requests of one burst are decided on one reading: what was sent since is added to it anyway."""
_BALANCER = "toolkit_balancer"
_LOOKED = "toolkit_looked"
_REGISTER = "toolkit_register"
_LOCALITY = "toolkit_locality"


def _start(original: Original[None], controller: Controller) -> None:
    original(controller)
    name = chosen()
    if name is None:
        return
    from sglang.srt.runtime_context import get_disagg

    mode, ranks = get_disagg().disaggregation_mode, len(controller.workers)
    locality = _locality(mode, ranks)
    reserve = reserved_tokens(get_disagg())
    balancer = Balancer(name, mode, ranks, _policy(name, locality), reserve)
    setattr(controller, _BALANCER, balancer)
    setattr(controller, _LOCALITY, locality)
    if mode == "prefill":
        setattr(controller, _REGISTER, Register())
    dispatcher = controller._request_dispatcher
    dispatcher += type(dispatcher)(
        [(Progressed, lambda event: balancer.progressed(event.requests, time.monotonic()))]
    )
    log.info("DP ranks are chosen by %s", name)


def _locality(mode: str, ranks: int) -> DpLocality | None:
    from sglang.srt.runtime_context import get_parallel

    folder = os.environ.get(DP_PROFILE_VARIABLE)
    if not folder or mode != "decode" or not by_signature(chosen()):
        return None
    if layout.together(get_parallel()):
        log.warning(
            "the %d DP ranks share their experts (DP attention): locality decides nothing here, %s "
            "chooses by what else it looks at, and no request waits for its signature",
            *(ranks, chosen()),
        )
        return None
    try:
        return DpLocality(folder, ranks)
    except ValueError as error:
        refuse(str(error))


def _policy(name: str, locality: DpLocality | None) -> Policy:
    from toolkit.policies import make_policy

    policy = make_policy(name)
    path = os.environ.get(DP_RECORD_VARIABLE)
    if path:
        from toolkit.decide.record import recorded

        policy = recorded(policy, Path(path))
    if locality is not None:
        locality.attach(policy)
    return policy


def _look(controller: Controller, balancer: Balancer) -> None:
    now = time.monotonic()
    if now - getattr(controller, _LOOKED, 0.0) >= BURST_S:
        setattr(controller, _LOOKED, now)
        balancer.look(controller.load_snapshot_reader.read_all(), now)
    locality = getattr(controller, _LOCALITY, None)
    if locality is not None:
        _release(controller, balancer, locality.due(now))


def _release(controller: Controller, balancer: Balancer, held: list[Released[Tokenized]]) -> None:
    from sglang.srt.managers.io_struct import wrap_as_pickle

    for req, signature in held:
        # As it was when it was to be sent: `dispatching_with_trace` has unwrapped them since.
        req.time_stats = wrap_as_pickle(req.time_stats)
        _send(controller, balancer, req, signature)


def _refresh(original: Original[None], controller: Controller) -> None:
    """Before each dispatch, and once before a batch."""
    balancer = getattr(controller, _BALANCER, None)
    if balancer is None:
        original(controller)
    else:
        _look(controller, balancer)


def _dispatch(original: Original[None], controller: Controller, req: Tokenized) -> None:
    balancer = getattr(controller, _BALANCER, None)
    if balancer is None:
        original(controller, req)
        return
    named = getattr(req, "routed_dp_rank", None)
    if named is not None:
        _announce(controller, req, named)
    if controller.maybe_external_dp_rank_routing(req):
        return
    locality = getattr(controller, _LOCALITY, None)
    if locality is None:
        _send(controller, balancer, req)
    elif not locality.hold(req, *_bootstrap(), time.monotonic()):
        _send(controller, balancer, req, "nothing heard of its prefill")


def _send(
    controller: Controller,
    balancer: Balancer,
    req: Tokenized,
    signature: np.ndarray | str | None = None,
) -> None:
    """Let the policy choose a rank, and send the request there."""
    from sglang.srt.managers.io_struct import sock_send

    usable = [
        worker is not None and up
        for worker, up in zip(controller.workers, controller.status, strict=True)
    ]
    rank = balancer.choose(req, usable, time.monotonic(), signature)
    if rank is None:
        # As SGLang's round robin does; the server then ends and is started again.
        raise RuntimeError("No active DP workers are available for routing.")
    _announce(controller, req, rank)
    sock_send(controller.workers[rank], req)


def _bootstrap() -> tuple[int, str]:
    """The port of this worker's bootstrap server, and the host that stands for no server."""
    from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST
    from sglang.srt.runtime_context import get_disagg

    return get_disagg().disaggregation_bootstrap_port, FAKE_BOOTSTRAP_HOST


def _announce(controller: Controller, req: Tokenized, rank: int) -> None:
    """Where decode has to fetch the KV of a prefill."""
    register = getattr(controller, _REGISTER, None)
    if register is not None:
        announce(register, req, rank, *_bootstrap())


def _route_named(original: Original[bool], controller: Controller, req: Tokenized) -> bool:
    named: bool = original(controller, req)
    balancer = getattr(controller, _BALANCER, None)
    if named and balancer is not None:
        balancer.sent_elsewhere(req, req.routed_dp_rank, time.monotonic())
    return named


def _loop(original: Original[None], controller: Controller) -> None:
    import zmq
    from sglang.srt.managers.io_struct import sock_recv

    balancer = getattr(controller, _BALANCER, None)
    locality = getattr(controller, _LOCALITY, None)
    receive = getattr(controller.load_snapshot_reader, "poll", None)
    while True:
        controller.soft_watchdog.feed()
        try:
            req = sock_recv(controller.recv_from_tokenizer, flags=zmq.NOBLOCK)
        except zmq.ZMQError:
            waited_for = locality is not None and len(locality.holding)
            pause_s = BURST_S if waited_for else LOOK_S if balancer or receive else IDLE_S
            controller.recv_from_tokenizer.poll(round(pause_s * 1000))
            if balancer is not None:
                _look(controller, balancer)
            elif receive is not None:
                receive()
            continue
        controller._request_dispatcher(req)


def _send_aborted(original: Original[object], controller: Controller, obj: object) -> object:
    """An abort of a request that is held: it goes to a rank first, which then ends it as always."""
    locality = getattr(controller, _LOCALITY, None)
    if locality is not None and len(locality.holding):
        from sglang.srt.managers.io_struct import AbortReq

        if isinstance(obj, AbortReq):
            balancer: Balancer = getattr(controller, _BALANCER)

            def wanted(req: Tokenized) -> bool:
                # As the schedulers match them: a rid stands for all that begin with it.
                return obj.abort_all or str(req.rid).startswith(obj.rid)

            _release(controller, balancer, locality.holding.give_up(wanted))
    return original(controller, obj)


PATCH = Patch(
    name="dp_controller",
    why="the DP rank is to be chosen by our policies behind SGLang's router too",
    processes=frozenset({Process.CONTROLLER}),
    hooks=(
        Hook(f"{CONTROLLER}.init_dispatcher", _start, ("self",)),
        Hook(f"{CONTROLLER}.refresh_load_budget", _refresh, ("self",)),
        Hook(f"{CONTROLLER}.total_tokens_scheduler", _dispatch, ("self", "req")),
        Hook(f"{CONTROLLER}.maybe_external_dp_rank_routing", _route_named, ("self", "req")),
        Hook(f"{CONTROLLER}.send_control_message", _send_aborted, ("self", "obj")),
        Hook(f"{CONTROLLER}.event_loop", _loop, ("self",)),
    ),
    requires=(
        "sglang.srt.managers.io_struct.sock_send",
        "sglang.srt.managers.io_struct.sock_recv",
        "sglang.srt.managers.io_struct.wrap_as_pickle",
        "sglang.srt.managers.io_struct.AbortReq",
        "sglang.srt.runtime_context.get_disagg",
        "sglang.srt.runtime_context.get_parallel",
        "sglang.srt.disaggregation.utils.FAKE_BOOTSTRAP_HOST",
        "sglang.srt.managers.load_snapshot.ZmqShmLoadSnapshotReader.poll",
        "sglang.srt.utils.watchdog.Watchdog.feed",
        "sglang.srt.managers.load_snapshot.ShmLoadSnapshotReader.read_all",
    ),
)
