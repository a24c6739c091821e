"""Run a plan: bring it up, keep it up, drain it, leave nothing behind.

One thread runs the loop (and is the parent of every worker); it waits on process exits (pidfds),
answers of probes, and timers. `request_stop` may come from any thread or a signal handler.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from toolkit.launch import claims, drain, keys, readiness, trees
from toolkit.launch.background import Background
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.logfile import rotate_own
from toolkit.launch.plan import Plan
from toolkit.launch.process import FINAL, Status
from toolkit.launch.processes import Processes
from toolkit.launch.progress import Quiet, Reporter
from toolkit.launch.runfiles import RunFiles
from toolkit.launch.scratch import scratch

GENERATION_TRIES = 5
REDRAW = 0.5
LAUNCHER_LOG = "launcher.log"
"""What a detached launcher has as its standard output and error."""


class Phase(StrEnum):
    """Where the deployment is."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Supervisor:
    """Supervises the local processes of one plan. Call `run` once.

    `front`: listening sockets for the router that another namespace has; closed with the stop.
    """

    def __init__(
        self,
        plan: Plan,
        run_dir: Path,
        reporter: Reporter | None = None,
        front: Sequence[socket.socket] = (),
    ) -> None:
        self.plan = plan
        self._front = front
        self.run_dir = run_dir.resolve()
        self.run_id = uuid.uuid4().hex
        self.worker_key = keys.worker_key(plan)
        self.phase = Phase.STARTING
        self.settled = threading.Event()
        """Set when the deployment is ready, or never will be (`failure` says why)."""
        self.failure: LaunchError | None = None
        self.changed = threading.Condition()
        """Notified after every event."""
        me = trees.look(os.getpid())
        self._start_ticks = me.start if me else 0
        self._reporter = reporter or Quiet()
        self._files = RunFiles(self.run_dir, _fixed_files(plan), self._say)
        self._selector = selectors.DefaultSelector()
        self._background = Background()
        self._fleet: Processes | None = None
        self._stops = 0
        self._now = False
        self._tries = 0
        self._generating = False
        self._polling = False
        self._deadline = 0.0

    @property
    def fleet(self) -> Processes:
        """The processes; they exist once `run` has begun."""
        assert self._fleet is not None
        return self._fleet

    def request_stop(self, now: bool = False) -> None:
        """Drain and stop; the second request, or `now`, ends everything at once."""
        self._stops += 1
        self._now = self._now or now or self._stops > 1
        self._background.wake()

    def run(self) -> None:
        """Start, supervise and stop. Returns after a requested stop; raises LaunchError when the
        deployment did not come up or could not go on, or when another launcher has the run folder
        or a port: then nothing was touched. No process is left either way."""
        with contextlib.ExitStack() as held:
            try:
                if self.plan.isolate and not self._front:
                    mend = "start it with `toolkit launch`, or remove isolate"
                    what = "only `toolkit launch` can give a deployment a namespace of its own"
                    raise LaunchError([Problem("isolate", what, mend)])
                held.enter_context(claims.hold(self.plan, self.run_dir))
                folder = held.enter_context(scratch())
            except LaunchError as error:
                self.failure = error
                self._close()
                raise
            self._run(Path(folder))

    def _run(self, folder: Path) -> None:
        try:
            self._files.begin()
        except LaunchError as error:
            self.failure = error
            self._background.close()
            self._selector.close()
            self.settled.set()
            raise
        self._selector.register(self._background, selectors.EVENT_READ, self._background.deliver)
        self._deadline = time.monotonic() + self.plan.timeouts.start
        keys.hold(self.plan, self.worker_key)
        self._fleet = Processes(
            keys.armed(self.plan, self.worker_key),
            self.run_dir,
            self.run_id,
            folder,
            self._selector,
            self._background,
            self._event,
            self._front,
        )
        try:
            self._event(f"run folder {self.run_dir}")
            while self.phase not in (Phase.STOPPED, Phase.FAILED):
                self._step()
        except BaseException as error:
            self.failure = self.failure or LaunchError(f"the launcher failed: {error!r}")
            raise
        finally:
            self._end()
        if self.failure:
            raise self.failure

    def _step(self) -> None:
        now = time.monotonic()
        self.fleet.tick(now)
        self._decide(now)
        if self._files.due(now):
            self._write_state()
        with contextlib.suppress(OSError):
            self._reporter.refresh(self.phase, self.fleet.processes.values())
        for key, _ in self._selector.select(self._patience()):
            key.data()

    def _patience(self) -> float | None:
        if self.phase in (Phase.STOPPED, Phase.FAILED):
            return 0.0
        timers = [t for t in (self.fleet.next_timer(), self._files.timer) if t is not None]
        # Phases with a deadline redraw; a settled one wakes seldom, only to look at the guard.
        limit = 5.0 if self.phase is Phase.READY else REDRAW
        return max(0.0, min([limit, *(timer - time.monotonic() for timer in timers)]))

    def _decide(self, now: float) -> None:
        if self._now and self.phase in (Phase.STARTING, Phase.READY, Phase.DRAINING):
            self._move(Phase.STOPPED, "stopping at once")
        elif self.phase is Phase.STARTING:
            self._starting(now)
        elif self.phase is Phase.READY:
            self._ready(now)
        elif self.phase is Phase.DRAINING:
            self._draining(now)
        elif self.phase is Phase.STOPPING:
            gone = all(m.popen is None for m in self.fleet.processes.values())
            if gone or self._now or now > self._deadline:
                self._move(Phase.STOPPED, None)

    def _starting(self, now: float) -> None:
        dead = [m for m in self.fleet.processes.values() if m.status in FINAL]
        if self._stops:
            self._stop(now)
        elif dead:
            self._fail([Problem(m.name, f"{m.note}\n{m.tail()}", f"see {m.log}") for m in dead])
        elif now > self._deadline:
            late = [m for m in self.fleet.processes.values() if m.status is not Status.READY]
            limit = self.plan.timeouts.start
            self._fail(
                [
                    Problem(
                        m.name,
                        f"not ready after {limit:.0f} s ({m.status}: {m.note})\n{m.tail()}",
                        f"see {m.log}, or raise timeouts.start",
                    )
                    for m in late
                ]
                or [Problem("generation", f"no generation within {limit:.0f} s")]
            )
        elif self.fleet.all_in(Status.READY) and not self._generating:
            if self.plan.router and not self.plan.router.local:
                self._move(Phase.READY, "own workers are ready (the router runs elsewhere)")
            else:
                self._generating = True
                timeout = self.plan.timeouts.generation
                self._background.ask(
                    lambda: readiness.generate(self.plan, timeout), self._generated
                )

    def _generated(self, result: Any) -> None:
        self._generating = False
        if self.phase is not Phase.STARTING:
            return
        if isinstance(result, list):
            worst = max(result)
            self._move(
                Phase.READY,
                f"ready: {len(result)} generation(s) through the whole path, "
                f"slowest {worst * 1000:.0f} ms; {self.plan.entry_url}",
            )
            return
        self._tries += 1
        self._event(f"generation try {self._tries}: {result}")
        if self._tries >= GENERATION_TRIES:
            what = f"all processes are up but nothing can be generated: {result}"
            self._fail([Problem("generation", what, f"see the logs in {self.run_dir}")])

    def _ready(self, now: float) -> None:
        if self._stops:
            self._stop(now)
            return
        # What died too often rests and is tried again; only a refusal cannot get better.
        processes = list(self.fleet.processes.values())
        routers = [m for m in processes if m.role == "router" and m.status in FINAL]
        workers = [m for m in processes if m.role != "router"]
        if routers:
            self._fail([Problem(m.name, f"{m.note}\n{m.tail()}", f"see {m.log}") for m in routers])
        elif workers and all(m.status in FINAL for m in workers):
            self._fail([Problem(m.name, f"refused: {m.note}", f"see {m.log}") for m in workers])

    def _stop(self, now: float) -> None:
        router = self.plan.router
        own = router is not None and router.kind == "toolkit" and router.local
        if self.phase is Phase.READY and own:
            self._deadline = now + self.plan.timeouts.drain
            self._move(Phase.DRAINING, "draining: no new requests (again to stop at once)")
        else:
            self._terminate(now, None)

    def _draining(self, now: float) -> None:
        if now > self._deadline:
            limit = self.plan.timeouts.drain
            self._terminate(now, f"requests still in flight after {limit:.0f} s are dropped")
        elif not self._polling:
            self._polling = True
            self._background.ask(lambda: drain.left(self.plan, self.run_id), self._drained)

    def _drained(self, left: Any) -> None:
        self._polling = False
        if self.phase is not Phase.DRAINING:
            return
        if isinstance(left, Exception):
            self._terminate(time.monotonic(), f"cannot drain: {left}")
        elif left == 0:
            self._terminate(time.monotonic(), "drained")

    def _terminate(self, now: float, text: str | None) -> None:
        self._close_front()
        self._deadline = now + self.plan.timeouts.stop
        self._move(Phase.STOPPING, text)
        self.fleet.terminate()

    def _fail(self, problems: list[Problem]) -> None:
        self.failure = LaunchError(problems)
        self._move(Phase.FAILED, None)

    def _move(self, phase: Phase, text: str | None) -> None:
        self.phase = phase
        if phase is Phase.READY:
            self.fleet.patient = True
        if text:
            self._event(text)
        else:
            self._write_state()
        if phase in (Phase.READY, Phase.STOPPED, Phase.FAILED):
            self.settled.set()

    def _end(self) -> None:
        left = self.fleet.kill()
        keys.drop(self.plan)
        self.fleet.close()
        self.phase = Phase.FAILED if self.failure else Phase.STOPPED
        self._write_state(last=True)
        for process in left:
            self._event(f"could not end process {process.pid}")
        if not self.failure:
            self._say("stopped; no process is left" if not left else "stopped")
        self._close()

    def _close_front(self) -> None:
        """Whoever comes now is refused, as where nobody listens."""
        for each in self._front:
            each.close()
        self._front = ()

    def _close(self) -> None:
        self._close_front()
        with contextlib.suppress(OSError):
            self._reporter.close()
        self._selector.close()
        self._background.close()
        self.settled.set()

    def _event(self, text: str) -> None:
        self._write_state()  # first: whoever reads the event may look at the state
        self._say(text)
        with self.changed:
            self.changed.notify_all()

    def _say(self, text: str) -> None:
        """Tell people, where that is possible: standard error may be a full disk or closed."""
        logs = self.plan.logs
        rotate_own(self.run_dir / LAUNCHER_LOG, int(logs.max_mib * 2**20), logs.keep)
        with contextlib.suppress(OSError, ValueError):
            self._reporter.event(text)

    def _write_state(self, last: bool = False) -> None:
        rows = [
            {
                "name": m.name,
                "role": m.role,
                "url": m.url,
                "pid": m.pid,
                "start_ticks": m.start_ticks,
                "status": str(m.status),
                "restarts": m.restarts,
                "note": m.note,
                "log": str(m.log),
            }
            for m in self.fleet.processes.values()
        ]
        self._files.write(
            {
                "name": self.plan.name,
                "phase": str(self.phase),
                "pid": os.getpid(),
                "start_ticks": self._start_ticks,
                "run_id": self.run_id,
                "guard_pid": self.fleet.guard.pid,
                "router_url": self.plan.entry_url,
                "isolated": self.plan.isolate,
                **keys.named_keys(self.plan.router),
                "workers": [r for r in rows if r["role"] != "router"],
                "router": next((r for r in rows if r["role"] == "router"), None),
                "updated": time.time(),
            },
            time.monotonic(),
            last,
        )


def _fixed_files(plan: Plan) -> dict[str, Any]:
    """What a run folder holds from the beginning, by name. Neither has a secret: the router's file
    names the variables that hold its keys."""
    files: dict[str, Any] = {"plan.json": plan.to_json()}
    if plan.router and plan.router.config is not None:
        files["router.json"] = plan.router.config
    return files
