"""Who ran when: a line for every batch of a scheduler, in a file of its own.

For questions that means cannot answer (what did this request wait for?), for tests, benchmarks and
pictures (`tests.benchmarks.preempt_picture`). It grows without a bound, so only workers that are
told write one. A line is JSON:

    {"phase": "prefill", "began": S, "ended": S,
     "requests": [[rid, class, prompt tokens, sent, entered], ...], "pauses": [[S, S, layers], ...]}

S are seconds of the machine's monotonic clock. `sent`: when the worker's HTTP process passed the
request on; `entered`: when it entered the queue of those that are ready to be prefilled (0 where
SGLang did not note it). `pauses`: when the batch stood still for others, and how many layers it had
behind it; those have lines of their own, which come before it. Of decode batches `requests` has no
times. A forward's end is when it returns, which on a GPU is before it is computed.
"""

import json
import os
import time

from patches.base import EITHER, Hook, Patch
from patches.classes import class_of
from patches.layers import Original
from patches.scheduler_state import of
from patches.sglang_types import Batch, Req, Scheduler
from patches.steps.sent_time import sent_at
from patches.steps.stops import stops_of
from toolkit.contract.variables import TRACE_VARIABLE


class Trace:
    """The file of this process."""

    def __init__(self) -> None:
        path = f"{os.environ[TRACE_VARIABLE]}.{os.getpid()}"
        self.file = open(path, "a", buffering=1)  # noqa: SIM115


def _traced(
    original: Original[object],
    scheduler: Scheduler,
    batch: Batch,
    *args: object,
    **kwargs: object,
) -> object:
    mode = batch.forward_mode
    decode = mode.is_decode()
    if not (decode or mode.is_extend()):
        return original(scheduler, batch, *args, **kwargs)
    requests = [_of(req, decode) for req in batch.reqs]
    began = time.monotonic()
    result = original(scheduler, batch, *args, **kwargs)
    line = {
        "phase": "decode" if decode else "prefill",
        "began": began,
        "ended": time.monotonic(),
        "requests": requests,
        "pauses": [[stop.began, stop.ended, stop.layers] for stop in stops_of(batch)],
    }
    of(scheduler).get(Trace).file.write(json.dumps(line) + "\n")
    return result


def _of(req: Req, decode: bool) -> list[object]:
    said: list[object] = [req.rid, class_of(req).value, len(req.origin_input_ids)]
    if decode:
        return said
    return [*said, sent_at(req), req.time_stats.wait_queue_entry_time]


PATCH = Patch(
    name="batch_trace",
    why="what a request waited for shows in no mean",
    after={
        "preempt_boundary": "it reads when the batch stood still",
        "signature": "its times are of the whole",
        "lockstep": "its times are of the whole",
        "step_log_cpu": "its times are of the whole",
    },
    processes=EITHER,
    variable=TRACE_VARIABLE,
    hooks=(Hook("sglang.srt.managers.scheduler.Scheduler.run_batch", _traced, ("self", "batch")),),
)
