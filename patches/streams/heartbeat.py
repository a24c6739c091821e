"""A scheduler counts the rounds of its loop where others can see them, and says what it begins.

SGLang's watchdog is a thread of the scheduler's own process: it cannot run while native code holds
the interpreter's lock, nor in a process that is stopped. Here the loop itself writes, into memory
that other processes read (`toolkit.contract.heartbeat`): a count of its rounds, whether it holds
requests, and before each forward what it is and how long it should take by what such ones took
before. What nobody can foresee is announced without a time: the first forward of a kind (on a GPU:
of a size, which may compile kernels), and every order that is no request (new weights, moved
experts, a profile). The worker's event stream passes it on to the router, and the launcher reads
the file itself.

Schedulers that follow another one's requests write a file for their launcher alone: where one of
them stands still, all of them do, on whatever node they are. The process that serves HTTP has a
heartbeat of its own, from a thread, so that one that is stopped shows; whether its loop comes
round, its events say (`patches.streams.pulse`).
"""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patches.base import Hook, Patch, Process
from patches.dp import layout
from patches.environment import on_cpu
from patches.layers import Original
from patches.scheduler_state import current, of
from patches.sglang_types import Batch, Scheduler, TokenizerManager
from patches.steps.usual_times import UsualTimes
from toolkit.contract import heartbeat
from toolkit.contract.heartbeat import Beat, HeartbeatFile
from toolkit.contract.variables import HEARTBEAT_VARIABLE

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
HTTP_S = 0.25
"""Between two heartbeats of the process that serves HTTP."""
KEPT = 8
"""Forwards whose results may be on their way; what is older was never processed."""
ORDINARY = ("TokenizedGenerate", "TokenizedEmbedding", "BatchTokenized", "AbortReq", "Progressed")
"""How the names of messages begin that a scheduler takes without work to speak of."""


@dataclass
class RunningForward:
    """One that has begun and whose result is not processed."""

    decode: bool
    tokens: int
    doing: str
    expected_s: float
    began: float


@dataclass
class SchedulerProgress:
    """What a scheduler says of itself. `out`: None where nobody has asked for it. A time of 0 is
    one that is not known."""

    out: HeartbeatFile | None
    usual: UsualTimes
    beats: int = 0
    works: bool = False
    order: str = ""
    """What it was told to do and is doing."""
    forwards: dict[int, RunningForward] = field(default_factory=dict)

    def round(self) -> None:
        """The loop has come round, or a part of it has begun or ended."""
        self.beats += 1
        if self.out is not None:
            doing, expected_s = self._doing()
            self.out.write(Beat(self.beats, self.works, doing, expected_s))

    def _doing(self) -> tuple[str, float]:
        if self.order:
            return self.order, 0.0
        if not self.forwards:
            return "", self.usual.step_s
        unknown = next((each for each in self.forwards.values() if not each.expected_s), None)
        longest = unknown or max(self.forwards.values(), key=lambda each: each.expected_s)
        return longest.doing, longest.expected_s

    def begin(self, number: int, decode: bool, tokens: int, now: float) -> None:
        """A forward is about to begin."""
        expected_s = self.usual.expected(decode, tokens)
        what = "decode step" if decode else f"prefill of {tokens} tokens"
        doing = what if expected_s else f"first {what}"
        self.forwards[number] = RunningForward(decode, tokens, doing, expected_s, now)
        for old in [old for old in self.forwards if old <= number - KEPT]:
            del self.forwards[old]
        self.works = True
        self.round()

    def end(self, number: int, now: float) -> None:
        """Its result is processed."""
        forward = self.forwards.pop(number, None)
        if forward is not None:
            self.usual.took(forward.decode, forward.tokens, now - forward.began)
        self.round()

    def rest(self, works: bool) -> None:
        """Nothing is to be computed now."""
        self.works = works
        self.forwards.clear()


def _folder() -> Path | None:
    named = os.environ.get(HEARTBEAT_VARIABLE)
    return Path(named) if named else None


def _of(scheduler: Scheduler) -> SchedulerProgress:
    """This process's own."""
    state = of(scheduler)
    rounds = state.find(SchedulerProgress)
    if rounds is not None:
        return rounds
    folder, out = _folder(), None
    if folder is not None:
        reports = scheduler.ipc_channels.send_to_tokenizer.socket is not None
        own, pid = heartbeat.scheduler(layout.rank(scheduler)), os.getpid()
        out = HeartbeatFile(folder / (own if reports else heartbeat.follower(pid)))
    return state.keep(SchedulerProgress(out, UsualTimes(shapes=not on_cpu())))


def _come_round(
    original: Original[object], scheduler: Scheduler, recv_reqs: Sequence[object]
) -> object:
    rounds = _of(scheduler)
    names = [type(each).__name__ for each in recv_reqs or ()]
    rounds.works = rounds.works or bool(names)
    rounds.order = next((name for name in names if not name.startswith(ORDINARY)), "")
    rounds.round()
    result = original(scheduler, recv_reqs)
    if rounds.order:
        rounds.order = ""
        rounds.round()
    return result


def _announce(
    original: Original[object],
    scheduler: Scheduler,
    batch: Batch,
    *args: object,
    **kwargs: object,
) -> object:
    rounds, mode = _of(scheduler), batch.forward_mode
    if not (mode.is_decode() or mode.is_extend()):
        rounds.round()
        return original(scheduler, batch, *args, **kwargs)
    decode = mode.is_decode()
    tokens = len(batch.reqs) if decode else int(batch.extend_num_tokens or 0)
    rounds.begin(scheduler.forward_ct + 1, decode, tokens, time.monotonic())
    result = original(scheduler, batch, *args, **kwargs)
    rounds.round()
    return result


def _done(original: Original[None], scheduler: Scheduler, batch: Batch, result: object) -> None:
    original(scheduler, batch, result)
    _of(scheduler).end(batch.forward_iter, time.monotonic())


def _rest(original: Original[None], scheduler: Scheduler) -> None:
    original(scheduler)
    _of(scheduler).rest(works=not scheduler.is_fully_idle())


def _move_experts(original: Original[None], manager: TokenizerManager) -> None:
    rounds = current().find(SchedulerProgress)
    if rounds is None:
        original(manager)
        return
    rounds.order = "moving experts"
    rounds.round()
    original(manager)
    rounds.order = ""
    rounds.round()


def read_ranks() -> list[tuple[int, Beat]]:
    """What the schedulers of this worker last wrote, by DP rank."""
    folder = _folder()
    if folder is None:
        return []
    told = [(heartbeat.rank_of(name), beat) for name, beat in heartbeat.read_all(folder).items()]
    return [(rank, beat) for rank, beat in told if rank is not None]


def begin_http(manager: TokenizerManager) -> None:
    """Let the process that serves HTTP say that it lives, and whether it has requests."""
    folder = _folder()
    if folder is None:
        return
    out = HeartbeatFile(folder / heartbeat.HTTP)

    def run() -> None:
        beats = 0
        while True:
            beats += 1
            out.write(Beat(beats, bool(manager.rid_to_state)))
            time.sleep(HTTP_S)

    threading.Thread(target=run, name="toolkit-heartbeat", daemon=True).start()


_WHOLE = "what it does is part of the round, and is to be announced"

PATCH = Patch(
    name="heartbeat",
    why="a scheduler that hangs cannot say so, and nobody would notice",
    after=dict.fromkeys(
        (
            "load_count",
            "early_place",
            "move_outgoing",
            "preempt_admission",
            "batch_trace",
        ),
        _WHOLE,
    ),
    processes=frozenset({Process.SCHEDULER}),
    hooks=(
        Hook(f"{SCHEDULER}.process_input_requests", _come_round, ("self", "recv_reqs")),
        Hook(f"{SCHEDULER}.run_batch", _announce, ("self", "batch")),
        Hook(f"{SCHEDULER}.process_batch_result", _done, ("self", "batch", "result")),
        Hook(f"{SCHEDULER}.on_idle", _rest, ("self",)),
        Hook(
            "sglang.srt.eplb.eplb_manager.EPLBManager.on_forward_pass_end",
            _move_experts,
            ("self",),
        ),
    ),
    requires=(f"{SCHEDULER}.is_fully_idle",),
)
