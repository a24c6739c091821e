"""Run a plan: bring it up, keep it up, drain it, leave nothing behind.

One thread runs the loop (and is the parent of every worker); it waits on process exits (pidfds),
answers of probes, and timers. `request_stop` may come from any thread or a signal handler. When it
goes from one phase to the next is said in `phases`.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolkit.launch import claims, contents, drain, isolation, keys, readiness, trees
from toolkit.launch.announcer import Announcer
from toolkit.launch.background import Background
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.orders import Orders
from toolkit.launch.phases import OVER, Phase, PhaseInputs, PhaseMove, limit, next_move
from toolkit.launch.plan import Plan
from toolkit.launch.process import Status
from toolkit.launch.processes import Processes
from toolkit.launch.progress import Quiet, Reporter
from toolkit.launch.runfiles import RunFiles
from toolkit.launch.scratch import scratch

__all__ = ["Phase", "Supervisor"]

GENERATION_TRIES = 5
REDRAW = 0.5


class Supervisor:
    """Supervises the local processes of one plan. Call `run` once.

    `front`: listening sockets for the routers that another namespace has; closed with the stop.
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
        self._announcer = Announcer(reporter or Quiet(), self.run_dir, plan.logs)
        self._files = RunFiles(self.run_dir, contents.fixed(plan), self._announcer.event)
        self._selector = selectors.DefaultSelector()
        self._background = Background()
        self._orders: Orders | None = None
        self._fleet: Processes | None = None
        self._stops = 0
        self._now = False
        self._tries = 0
        self._asking = False
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
                isolation.refuse_without(self.plan, self._front)
                held.enter_context(claims.hold(self.plan, self.run_dir))
                folder = held.enter_context(scratch())
                self._files.begin()
            except LaunchError as error:
                self.failure = error
                self._close()
                raise
            self._supervise(Path(folder))

    def _supervise(self, folder: Path) -> None:
        self._selector.register(self._background, selectors.EVENT_READ, self._background.deliver)
        self._orders = Orders(self.run_id)
        self._selector.register(self._orders, selectors.EVENT_READ, self._obey)
        self._deadline = time.monotonic() + limit(self.phase, self.plan.timeouts)
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
            while self.phase not in OVER:
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
        move = next_move(self.phase, self._seen(now))
        if move:
            self._go(move)
        else:
            self._ask()
        if self._files.due(now):
            self._write_state()
        self._announcer.refresh(self.phase, self.fleet.processes.values())
        for key, _ in self._selector.select(self._wait_limit()):
            key.data()

    def _obey(self) -> None:
        assert self._orders is not None
        for order in self._orders.read():
            if self.phase is Phase.READY:
                self.fleet.order(order)
            else:
                self._event(f"order to {order.what} {order.worker}: not while {self.phase}")

    def _seen(self, now: float) -> PhaseInputs:
        processes = list(self.fleet.processes.values())
        return PhaseInputs(self.plan, processes, self._stops > 0, self._now, now > self._deadline)

    def _wait_limit(self) -> float:
        if self.phase in OVER:
            return 0.0
        timers = [t for t in (self.fleet.next_timer(), self._files.timer) if t is not None]
        # Phases with a deadline redraw; a settled one wakes seldom, only to look at the guard.
        longest = 5.0 if self.phase is Phase.READY else REDRAW
        return max(0.0, min([longest, *(timer - time.monotonic() for timer in timers)]))

    def _ask(self) -> None:
        """Put the question whose answer ends this phase, where there is one; one at a time."""
        if self._asking:
            return
        if self.phase is Phase.STARTING and self.fleet.all_in(Status.READY):
            self._asking = True
            timeout = self.plan.timeouts.generation
            self._background.ask(lambda: readiness.generate(self.plan, timeout), self._generated)
        elif self.phase is Phase.DRAINING:
            self._asking = True
            self._background.ask(lambda: drain.left(self.plan, self.run_id), self._drained)

    def _generated(self, result: Any) -> None:
        self._asking = False
        if self.phase is not Phase.STARTING:
            return
        if isinstance(result, list):
            times = f"{len(result)} generation(s) through the whole path, slowest"
            worst = max(result) * 1000
            self._go(
                PhaseMove(
                    Phase.READY, f"ready: {times} {worst:.0f} ms; {', '.join(self.plan.entry_urls)}"
                )
            )
            return
        self._tries += 1
        self._event(f"generation try {self._tries}: {result}")
        if self._tries >= GENERATION_TRIES:
            what = f"all processes are up but nothing can be generated: {result}"
            problem = Problem("generation", what, f"see the logs in {self.run_dir}")
            self._go(PhaseMove(Phase.FAILED, problems=[problem]))

    def _drained(self, left: Any) -> None:
        self._asking = False
        if self.phase is not Phase.DRAINING:
            return
        if isinstance(left, Exception):
            self._go(PhaseMove(Phase.STOPPING, f"cannot drain: {left}"))
        elif left == 0:
            self._go(PhaseMove(Phase.STOPPING, "drained"))

    def _go(self, move: PhaseMove) -> None:
        """Do what entering a phase takes, and report it."""
        if move.problems:
            self.failure = LaunchError(move.problems)
        if move.phase is Phase.STOPPING:
            self._close_front()
        self._deadline = time.monotonic() + limit(move.phase, self.plan.timeouts)
        self.phase = move.phase
        if move.phase is Phase.READY:
            self.fleet.patient = True
        if move.text:
            self._event(move.text)
        else:
            self._write_state()
        if move.phase is Phase.STOPPING:
            self.fleet.terminate()
        if move.phase is Phase.READY or move.phase in OVER:
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
            self._announcer.event("stopped; no process is left" if not left else "stopped")
        self._close()

    def _close_front(self) -> None:
        """Whoever comes now is refused, as where nobody listens."""
        for each in self._front:
            each.close()
        self._front = ()

    def _close(self) -> None:
        self._close_front()
        self._announcer.close()
        if self._orders is not None:
            self._orders.close()
        self._selector.close()
        self._background.close()
        self.settled.set()

    def _event(self, text: str) -> None:
        self._write_state()  # first: whoever reads the event may look at the state
        self._announcer.event(text)
        with self.changed:
            self.changed.notify_all()

    def _write_state(self, last: bool = False) -> None:
        state = contents.state(self.plan, str(self.phase), self.fleet, self._start_ticks)
        self._files.write(state, time.monotonic(), last)
