"""The processes of a run: start each when its turn comes and after its deaths, and end it.

Knows nothing of phases (start-up, drain): that is the supervisor's.
"""

import contextlib
import functools
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.launch import trees
from toolkit.launch.background import Background
from toolkit.launch.deaths import ProcessDeaths
from toolkit.launch.guard import LauncherGuard
from toolkit.launch.logpipes import LogPipes
from toolkit.launch.orders import LaunchOrder
from toolkit.launch.plan import Plan
from toolkit.launch.preloading import PRELOADED, preloaded
from toolkit.launch.probes import Probes
from toolkit.launch.process import FINAL, REFUSED, RETRIED, Managed, Status, describe_exit
from toolkit.launch.returns import ReturnReporter
from toolkit.launch.stalls import WorkerStalls
from toolkit.launch.started import started
from toolkit.launch.wait_limits import bounds
from toolkit.preloaded.client import State, reap


class Processes:
    """All local processes of a plan. Used by one thread, which must outlive them."""

    def __init__(
        self,
        plan: Plan,
        run_dir: Path,
        run_id: str,
        scratch: Path,
        selector: selectors.BaseSelector,
        background: Background,
        changed: Callable[[str], None],
        front: Sequence[socket.socket] = (),
    ) -> None:
        self.run_id = run_id
        self.processes = {m.name: m for m in started(plan, run_dir, scratch, front)}
        files = {m.name: m.log for m in self.processes.values()}
        forkable = [m for m in self.processes.values() if m.forkable]
        if forkable:
            files[PRELOADED] = run_dir / f"{PRELOADED}.log"
        self.logs = LogPipes(files, plan.logs, selector, changed)
        for m in self.processes.values():
            m.settle = self.logs.settle
        self.guard = LauncherGuard(run_id, scratch)
        self.preloaded = preloaded(
            forkable, self.logs, self.guard, run_id, selector, changed, plan.timeouts.start
        )
        self.stopping = False
        self.patient = False
        """Once the deployment was ready: a process that dies again and again rests, and is tried
        again for ever. Before, it fails the start."""
        self._deaths = ProcessDeaths(plan, background, changed)
        self._probes = Probes(run_id, background, changed)
        self._reporters = [
            ReturnReporter(plan, router, run_id, background) for router in plan.routers
        ]
        self._stalls = WorkerStalls(bounds(plan.device, plan.restart), scratch)
        self._selector = selector
        self._changed = changed
        self._pidfds: dict[str, int] = {}

    def all_in(self, *statuses: Status) -> bool:
        """True when every process has one of these statuses."""
        return all(m.status in statuses for m in self.processes.values())

    def next_timer(self) -> float | None:
        """The time (monotonic s) at which `tick` has something to do; None: only on events."""
        if self.stopping:
            return self.logs.timer
        everyone = self.processes.values()
        times: list[float | None] = [
            m.next_start for m in everyone if m.status in RETRIED and not self._must_wait(m)
        ]
        times += [
            *(reporter.timer for reporter in self._reporters),
            self.logs.timer,
            self._probes.timer(everyone),
            self._stalls.timer(everyone),
        ]
        if self.preloaded:
            times.append(self.preloaded.timer)
        if self.patient:
            times.append(self._deaths.timer)
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float) -> None:
        """Start what is due and probe what is starting."""
        if self.guard.renew():
            self._changed("the guard process was gone; started a new one")
        self.logs.tick(now)
        if self.stopping:
            return
        if self.preloaded:
            self.preloaded.tick(now)
        for m in self.processes.values():
            due = m.status in RETRIED and now >= m.next_start
            turn = m.status is Status.WAITING and all(
                self.processes[name].status is Status.READY
                for name in m.after
                if name in self.processes
            )
            if (due or turn) and not self._must_wait(m):
                self._spawn(m)
        self._probes.tick(self.processes.values(), now)
        for m, why in self._stalls.tick(self.processes.values(), now):
            self._end_stuck(m, why)
        for reporter in self._reporters:
            reporter.tick(self.processes.values(), now)
        if self.patient:
            self._deaths.tick(self.processes.values(), now)

    def order(self, order: LaunchOrder) -> None:
        """End one worker, all its processes, or start it again. It does not count as a death.

        It is killed: whoever gives the order has emptied it, and told to end SGLang would first
        look up after 5 s, and then wait for the router to close its event stream.
        """
        mine = [
            m for m in self.processes.values() if m.role != "router" and _is_of(m, order.worker)
        ]
        if not mine or self.stopping:
            self._changed(f"order to {order.what} {order.worker}: there is no such worker now")
            return
        for m in mine:
            if order.what == "start" and m.status not in FINAL:
                continue
            m.ordered = order.what
            if m.popen is None:
                self._ended_as_ordered(m)
                continue
            self._changed(f"{m.name}: ended, to {order.what}, as ordered")
            _end(m)

    def _end_stuck(self, m: Managed, why: str) -> None:
        """End what will not go on: all its processes, at once, since one that is stopped or hangs
        in native code hears no SIGTERM. Its death counts like any other."""
        m.status, m.note, m.stuck = Status.STUCK, f"stuck: {why}", why
        self._changed(f"{m.name}: {m.note}; it is killed and started again")
        _end(m)

    def _ended_as_ordered(self, m: Managed) -> None:
        what, m.ordered = m.ordered, None
        if what == "stop":
            m.status, m.note = Status.STOPPED, "stopped, as ordered"
            self._changed(f"{m.name}: {m.note}")
            return
        m.restarts += 1
        m.status, m.next_start, m.note = Status.RESTARTING, time.monotonic(), "starting, as ordered"
        self._changed(f"{m.name}: {m.note}")

    def terminate(self) -> None:
        """Ask every process to end (SIGTERM to the leaders); none is started again."""
        self.stopping = True
        for m in self.processes.values():
            if m.popen is not None:
                m.popen.send_signal(signal.SIGTERM)
            else:
                m.status = m.status if m.status in FINAL else Status.STOPPED

    def kill(self, timeout: float = 10.0) -> list[trees.ProcessRow]:
        """End every process at once; returns what could not be ended."""
        self.stopping = True
        leaders = {p: s for m in self.processes.values() for p, s in m.leaders.items()}
        if self.preloaded:
            self.preloaded.close()
            self.preloaded = None
        left = trees.kill_all(leaders, self.run_id, timeout, spare={self.guard.pid})
        for m in self.processes.values():
            if m.popen is not None:
                with contextlib.suppress(Exception):
                    m.popen.wait(1.0)
                reap(m.popen.pid)
            self._drop_pidfd(m)
            m.popen = None
            m.status = m.status if m.status in FINAL else Status.STOPPED
        return left

    def close(self) -> None:
        """Let the logs have their last lines; for when every process has ended."""
        self.guard.close()
        self.logs.close()

    def _must_wait(self, m: Managed) -> bool:
        """Whether it is forked as soon as SGLang is imported, so not started before."""
        if not m.forkable or self.preloaded is None:
            return False
        return self.preloaded.state in (State.GONE, State.IMPORTING)

    def _spawn(self, m: Managed) -> None:
        self._stalls.begin(m)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self.logs.say(m.name, f"--- toolkit: start {m.restarts + 1} of {m.name}, {stamp}")
        fd = -1
        try:
            ready = self.preloaded and self.preloaded.state is State.READY
            origin = self.preloaded if ready and m.forkable else None
            why = m.spawn(self.run_id, self.logs.output(m.name), origin)
            assert m.popen is not None
            if why:
                self.logs.say(m.name, f"--- toolkit: not forked, so slower to start: {why}")
            fd = os.pidfd_open(m.popen.pid)
        except OSError as error:  # no memory, processes or descriptors now: as if it had died
            if m.popen is not None:
                _end(m)
                m.popen.wait()
                m.popen = None
            self._deaths.died(m, f"cannot be started ({error.strerror})", self.patient)
            return
        self.guard.add(m.popen.pid, m.start_ticks)
        self._pidfds[m.name] = fd
        self._selector.register(fd, selectors.EVENT_READ, functools.partial(self._exited, m))
        m.note = ""
        self._changed(f"{m.name}: started (pid {m.pid})")

    def _exited(self, m: Managed) -> None:
        assert m.popen is not None
        code = m.popen.wait()
        self._drop_pidfd(m)
        # Its schedulers go with it, before anything takes their ports or memory again.
        _end(m)
        reap(m.popen.pid)
        self.guard.forget(m.popen.pid)
        m.popen = None
        if self.stopping:
            m.status, m.note = Status.STOPPED, ""
            self._changed(f"{m.name}: stopped")
            return
        if m.ordered:
            self._ended_as_ordered(m)
            return
        if code == REFUSED:
            m.status, m.note = Status.REFUSED, m.tail(1)
            self._changed(f"{m.name}: refused to start: {m.note}")
            return
        how = f"stuck ({m.stuck}), so killed" if m.stuck else describe_exit(code)
        self._deaths.died(m, how, self.patient)

    def _drop_pidfd(self, m: Managed) -> None:
        fd = self._pidfds.pop(m.name, None)
        if fd is not None:
            self._selector.unregister(fd)
            os.close(fd)


def _is_of(m: Managed, worker: str) -> bool:
    """Whether it is a process of this worker, which may have one on each of several nodes."""
    return m.name == worker or m.name.startswith(f"{worker}-node-")


def _end(m: Managed) -> None:
    """Kill what is left of a process; its group at least when /proc cannot be read now."""
    try:
        trees.kill_all(m.leaders)
    except OSError:
        with contextlib.suppress(OSError):
            os.killpg(next(iter(m.leaders)), signal.SIGKILL)
