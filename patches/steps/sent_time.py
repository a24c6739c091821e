"""When a worker's HTTP process passed a request on, for its scheduler.

SGLang notes the time and leaves it behind when the request is sent. A scheduler that is computing
sees a request only when it looks, so its own clock does not know how long that one has waited.
"""

from patches.base import Hook, Patch, Process
from patches.layers import Original
from patches.sglang_types import Req
from toolkit.contract.variables import PREEMPT_VARIABLE, TRACE_VARIABLE

KEY = "api_server_dispatch_time"
STATS = "sglang.srt.observability.req_time_stats"


def _with_time(original: Original[dict[str, object]], stats: object) -> dict[str, object]:
    return {**original(stats), KEY: getattr(stats, KEY)}


def sent_at(req: Req) -> float:
    """Of a scheduler's `Req`: seconds of the machine's monotonic clock; 0 where nobody said."""
    sent: float = getattr(req.time_stats, KEY)
    return sent


PATCHES = tuple(
    Patch(
        name=name,
        why="a scheduler that computes does not see how long a request has waited",
        processes=frozenset({Process.MAIN, Process.CONTROLLER}),
        variable=variable,
        hooks=(
            Hook(f"{STATS}.APIServerReqTimeStats.__getstate__", _with_time, ("self",)),
            Hook(f"{STATS}.DPControllerReqTimeStats.__getstate__", _with_time, ("self",)),
        ),
        requires=(f"{STATS}.SchedulerReqTimeStats",),
        independent_of=independent_of,
    )
    for name, variable, independent_of in (
        ("sent_time_preempt", PREEMPT_VARIABLE, {}),
        ("sent_time_trace", TRACE_VARIABLE, {"sent_time_preempt": "both do the same"}),
    )
)
