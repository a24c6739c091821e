"""The processes of a run: start each when its turn comes, probe it, restart it, end it.

Knows nothing of phases (start-up, drain): that is the supervisor's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.contract.variables import FRONT_VARIABLE as FRONT
from toolkit.launch import identity, keys, trees
from toolkit.launch.background import Background
from toolkit.launch.backoff import next_start, without
from toolkit.launch.guard import Guard
from toolkit.launch.logpipes import LogPipes
from toolkit.launch.plan import RUN_DIR, Plan
from toolkit.launch.poison import Poison
from toolkit.launch.preloading import PRELOADED, preloaded
from toolkit.launch.process import FINAL, REFUSED, RETRIED, Managed, Status, describe_exit
from toolkit.launch.progress import stage_of
from toolkit.launch.scratch import variables
from toolkit.preloaded.client import State, reap

PROBE_EVERY = 0.5
PROBE_TIMEOUT = 10.0


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
        self.restart = plan.restart
        self.run_id = run_id
        self.processes = {m.name: m for m in _processes(plan, run_dir, scratch, front)}
        files = {m.name: m.log for m in self.processes.values()}
        forkable = [m for m in self.processes.values() if m.forkable]
        if forkable:
            files[PRELOADED] = run_dir / f"{PRELOADED}.log"
        self.logs = LogPipes(files, plan.logs, selector, changed)
        for m in self.processes.values():
            m.settle = self.logs.settle
        self.guard = Guard(run_id, scratch)
        self.preloaded = preloaded(
            forkable, self.logs, self.guard, run_id, selector, changed, plan.timeouts.start
        )
        self.stopping = False
        self.patient = False
        """Once the deployment was ready: a process that dies again and again rests, and is tried
        again for ever. Before, it fails the start."""
        self._poison = Poison(plan)
        self._selector = selector
        self._background = background
        self._changed = changed
        self._pidfds: dict[str, int] = {}
        self._next_probe = 0.0
        self._served: set[str] = set()
        """Processes that have been ready once."""
        self._strangers: dict[str, str] = {}
        """Who was found at their ports; said once."""

    def all_in(self, *statuses: Status) -> bool:
        """True when every process has one of these statuses."""
        return all(m.status in statuses for m in self.processes.values())

    def next_timer(self) -> float | None:
        """The time (monotonic s) at which `tick` has something to do; None: only on events."""
        times = [
            m.next_start
            for m in self.processes.values()
            if m.status in RETRIED and not self._must_wait(m)
        ]
        if self.preloaded and self.preloaded.timer is not None:
            times.append(self.preloaded.timer)
        if any(m.status is Status.STARTING for m in self.processes.values()):
            times.append(self._next_probe)
        times += [time for time in (self.logs.timer, self._poison.timer) if time is not None]
        return min(times, default=None)

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
        if now >= self._next_probe:
            self._next_probe = now + PROBE_EVERY
            for m in self.processes.values():
                if m.status is Status.STARTING:
                    self._probe(m)
        if self.patient and self._poison.due(now):
            self._background.ask(self._poison.ask, self._pardon)

    def terminate(self) -> None:
        """Ask every process to end (SIGTERM to the leaders); none is started again."""
        self.stopping = True
        for m in self.processes.values():
            if m.popen is not None:
                m.popen.send_signal(signal.SIGTERM)
            else:
                m.status = m.status if m.status in FINAL else Status.STOPPED

    def kill(self, timeout: float = 10.0) -> list[trees.Process]:
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
            self._died(m, f"cannot be started ({error.strerror})")
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
        if code == REFUSED:
            m.status, m.note = Status.REFUSED, m.tail(1)
            self._changed(f"{m.name}: refused to start: {m.note}")
            return
        self._died(m, describe_exit(code))

    def _died(self, m: Managed, how: str) -> None:
        now, policy = time.monotonic(), self.restart
        if m.ready_after is not None and now - m.started - m.ready_after >= policy.window:
            m.rests = 0
        m.deaths = [death for death in m.deaths if now - death < policy.window] + [now]
        delay, rests = next_start(policy, m.deaths, now, m.rests)
        if rests and not self.patient:
            m.status = Status.FAILED
            m.note = f"{how}; gave up after {m.restarts} restarts in {policy.window:.0f} s"
            self._changed(f"{m.name}: {m.note}. Its log ends:\n{m.tail()}")
            return
        if rests and m.role == "router":
            delay = min(delay, policy.rest_first)  # nobody is served without it
        m.restarts += 1
        m.next_start = now + delay
        if rests:
            m.rests += 1
            m.status = Status.RESTING
            at = time.strftime("%H:%M:%S", time.localtime(time.time() + delay))
            m.note = f"{how}; died too often: rests, next try in {delay:.0f} s, at {at}"
            self._changed(f"{m.name}: {m.note}. Its log ends:\n{m.tail()}")
        else:
            m.status, m.note = Status.RESTARTING, f"{how}; starting again in {delay:.0f} s"
            self._changed(f"{m.name}: {m.note}")
        if m.role != "router":
            self._poison.after(now, policy.window)

    def _pardon(self, counts: object) -> None:
        """Deaths that a poisonous request caused do not count against a worker."""
        if not isinstance(counts, dict):
            return  # the router does not answer: it is asked again
        now, policy = time.monotonic(), self.restart
        for m in self.processes.values():
            total = self._poison.of(counts, m.name)
            new, m.poison = (total - m.poison if total >= m.poison else total), total
            if new <= 0:
                continue
            m.deaths = without(m.deaths, new)
            recent = sum(now - death < policy.window for death in m.deaths)
            if m.status is Status.RESTING and recent <= policy.max_restarts:
                m.rests = 0
                m.status, m.next_start = Status.RESTARTING, now + policy.first_delay
                m.note = f"starting again in {policy.first_delay:.0f} s"
                self._changed(f"{m.name}: poisonous requests killed it; {m.note}")

    def _drop_pidfd(self, m: Managed) -> None:
        fd = self._pidfds.pop(m.name, None)
        if fd is not None:
            self._selector.unregister(fd)
            os.close(fd)

    def _probe(self, m: Managed) -> None:
        m.note = stage_of(m.log)
        if m.probing:
            return
        m.probing = True
        life = m.popen

        def answer(result: object) -> None:
            m.probing = False
            if m.popen is not life or m.status is not Status.STARTING:
                return
            if isinstance(result, identity.Probe) and result.stranger:
                self._not_ours(m, result.stranger)
            elif isinstance(result, identity.Probe) and result.status == 200:
                m.status, m.note = Status.READY, ""
                m.ready_after = time.monotonic() - m.started
                self._served.add(m.name)
                self._changed(f"{m.name}: ready after {m.ready_after:.1f} s")

        leaders = m.leaders
        self._background.ask(
            lambda: identity.probe(m.health_url, PROBE_TIMEOUT, self.run_id, leaders), answer
        )

    def _not_ours(self, m: Managed, who: str) -> None:
        """Somebody else answers at its port, so it will not get it. At the start that is the end;
        later it goes the way of a process that does not get up, while the others go on."""
        if m.name not in self._served:
            m.status, m.note = Status.FAILED, who
            self._changed(f"{m.name}: {who}")
        elif self._strangers.get(m.name) != who:
            self._strangers[m.name] = who
            self._changed(f"{m.name}: not ready: {who}")


def _end(m: Managed) -> None:
    """Kill what is left of a process; its group at least when /proc cannot be read now."""
    try:
        trees.kill_all(m.leaders)
    except OSError:
        with contextlib.suppress(OSError):
            os.killpg(next(iter(m.leaders)), signal.SIGKILL)


def _processes(
    plan: Plan, run_dir: Path, scratch: Path, front: Sequence[socket.socket]
) -> list[Managed]:
    temporary = variables(scratch)
    result = [
        Managed(
            name=w.name,
            role=w.role,
            url=w.url,
            health_url=w.health_url,
            command=w.command,
            env={**temporary, **w.env},
            log=run_dir / f"{w.name}.log",
            after=w.after,
            without=keys.not_for_workers(plan),
        )
        for w in plan.workers
        if w.local
    ]
    if plan.router and plan.router.local:
        router, passed = plan.router, [each.fileno() for each in front]
        inherits = {FRONT: ",".join(map(str, passed))} if passed else {}
        result.append(
            Managed(
                name="router",
                role="router",
                url=router.url,
                health_url=f"{router.url}/readiness",
                command=[part.replace(RUN_DIR, str(run_dir)) for part in router.command],
                env={**temporary, **router.env, **inherits},
                log=run_dir / "router.log",
                # SGLang's router fills its log with complaints about workers not yet there.
                after=[m.name for m in result] if router.kind == "sglang" else (),
                without=keys.not_for_the_router(plan),
                passed=passed,
            )
        )
    return result
