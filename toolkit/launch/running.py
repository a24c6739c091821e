"""`with running(plan) as deployment:` for tests, benchmarks and the demo."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.launch import keys
from toolkit.launch.errors import LaunchError
from toolkit.launch.plan import Plan
from toolkit.launch.process import Managed, Status
from toolkit.launch.progress import Reporter
from toolkit.launch.state import drop_empty, new_run_dir
from toolkit.launch.supervisor import Supervisor


@dataclass(frozen=True)
class RunningWorker:
    """A worker as it is now; `pid` is None between a death and the restart."""

    name: str
    role: str
    url: str
    pid: int | None
    status: str
    restarts: int
    log: Path

    @property
    def headers(self) -> dict[str, str]:
        """What a request to this worker must carry: the run's key."""
        return keys.headers_at(self.url)


class Running:
    """A deployment that is up."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.plan = supervisor.plan
        self.run_dir = supervisor.run_dir
        self.router_url = supervisor.plan.entry_url
        self.router_urls = supervisor.plan.entry_urls
        """Of all routers over these workers."""
        router = supervisor.plan.router
        self.admin_url = (router and router.admin_url) or self.router_url
        """Where /admin/* answers."""
        self.worker_key = supervisor.worker_key

    @property
    def workers(self) -> list[RunningWorker]:
        """The workers that serve HTTP, as they are at this moment."""
        return [
            _view(m)
            for m in self.supervisor.fleet.processes.values()
            if m.role != "router" and m.url is not None
        ]

    @property
    def router_pid(self) -> int | None:
        """Process id of the (first) router; None when there is none."""
        everyone = self.supervisor.fleet.processes.values()
        return next((m.pid for m in everyone if m.role == "router"), None)

    @property
    def preloaded_pid(self) -> int | None:
        """Process id of what CPU workers are forked from; None when there is none now."""
        preloaded = self.supervisor.fleet.preloaded
        return preloaded.pid if preloaded else None

    def worker(self, name: str) -> RunningWorker:
        """The worker with this name (KeyError when there is none)."""
        for worker in self.workers:
            if worker.name == name:
                return worker
        raise KeyError(name)

    def wait_ready(self, name: str, restarts: int = 0, timeout: float = 300.0) -> RunningWorker:
        """Wait until a process (a worker, or "router") is ready and has been started again at
        least `restarts` times: after a kill, pass one more than before it. Raises TimeoutError."""
        process = self.supervisor.fleet.processes[name]
        with self.supervisor.changed:
            done = self.supervisor.changed.wait_for(
                lambda: process.status is Status.READY and process.restarts >= restarts, timeout
            )
        if not done:
            raise TimeoutError(f"{name} is {process.status} after {timeout:.0f} s: {process.note}")
        return _view(process)


def _view(m: Managed) -> RunningWorker:
    return RunningWorker(m.name, m.role, m.url or "", m.pid, str(m.status), m.restarts, m.log)


@contextlib.contextmanager
def running(
    plan: Plan, run_dir: Path | None = None, reporter: Reporter | None = None
) -> Iterator[Running]:
    """Start `plan`, yield when a generation went through, and end every process afterwards.

    Ports and memory are checked first, not the flags (`checks.check(plan)` does, in some 20 s).
    Raises LaunchError with the reasons, and the ends of logs, when it does not come up. While it
    runs no other launcher gets its folder or ports (`claims`).
    """
    from toolkit.launch.checks import possible

    possible.refuse(possible.quick(plan))
    folder = run_dir or new_run_dir(plan.name)
    supervisor = Supervisor(plan, folder, reporter)
    thread = threading.Thread(target=_run, args=(supervisor,), name="toolkit-supervisor")
    thread.start()  # the workers' parent: it lives as long as they do
    try:
        supervisor.settled.wait()
        if supervisor.failure:
            thread.join()
            if run_dir is None:
                drop_empty(folder)
            raise supervisor.failure
        yield Running(supervisor)
    finally:
        supervisor.request_stop()
        thread.join()


def _run(supervisor: Supervisor) -> None:
    try:
        supervisor.run()
    except LaunchError as error:  # the waiting thread raises it
        supervisor.failure = supervisor.failure or error
    except Exception as error:
        supervisor.failure = supervisor.failure or LaunchError(f"the launcher failed: {error!r}")
    finally:
        supervisor.settled.set()
