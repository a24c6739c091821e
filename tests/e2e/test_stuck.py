"""Schedulers that hold work and make no step, on real workers: noticed, left, ended, started again.

Each is made to stand still from outside (SIGSTOP), or by a plugin of SGLang that the test brings:
told by a signal, it has Python's `re` match a pattern that it never gets through, on the
scheduler's own thread. That holds the interpreter's lock, so no thread of the process runs either.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e import calls, workers
from tests.e2e.deployments import deployed
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch.command import LATE_ENV
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKENS = 24
FEW, OFTEN = 6, 10
"""Tokens of a stream where more than so many begin each second: one worker less must do."""
KV_S = float(LATE_ENV["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"])
PLUGIN = """
import re
import signal


def register():
    signal.signal(signal.SIGUSR1, lambda *_: re.match("(a|a)*$", "a" * 60 + "b"))
"""
ENTRY = "[sglang.srt.plugins]\nhang = hang:register\n"


def hang_plugin(folder: Path) -> None:
    """A package that SGLang finds by its entry point, where the folder is in PYTHONPATH."""
    info = folder / "hang-1.dist-info"
    info.mkdir(parents=True)
    (folder / "hang.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hang\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY)


def role(replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {"replicas": replicas, "kv_tokens": 16384, "max_running": 16, **more}


def schedulers(deployment: Running, name: str) -> list[int]:
    """Pids of a worker's schedulers, by rank."""
    pid = deployment.worker(name).pid
    assert pid is not None
    children = psutil.Process(pid).children(recursive=True)
    return sorted(c.pid for c in children if "scheduler" in " ".join(c.cmdline()))


class Load:
    """Streams that begin at a steady rate."""

    def __init__(self, url: str, rate: float) -> None:
        self._url = url
        self._rate = rate
        self._tasks: list[asyncio.Task[calls.Answer]] = []
        self.tokens = TOKENS if rate <= OFTEN else FEW
        self.first_s = 0.0
        """The longest that a stream waited for its first token, and then for another one."""
        self.next_s = 0.0

    async def run(self, http: Any) -> None:
        """Until cancelled."""
        while True:
            self._tasks.append(asyncio.create_task(self._one(http, len(self._tasks))))
            await asyncio.sleep(1 / self._rate)

    async def _one(self, http: Any, number: int) -> calls.Answer:
        last, had = time.monotonic(), 0

        def came(count: int) -> None:
            nonlocal last, had
            now = time.monotonic()
            if had:
                self.next_s = max(self.next_s, now - last)
            else:
                self.first_s = max(self.first_s, now - last)
            last, had = now, count

        body = calls.greedy(calls.prompt(f"stuck-{number}", 20), self.tokens, stream=True)
        return await calls.generate(http, self._url, body, came)

    async def answers(self) -> list[calls.Answer]:
        return list(await asyncio.gather(*self._tasks))


async def stand_still(
    deployment: Running, name: str, pid: int, how: signal.Signals, rate: float
) -> None:
    """Stop a scheduler under load; check what becomes of its requests, and of it."""
    await workers.settled(deployment)
    url, worker = deployment.router_url, deployment.worker(name)
    before = {row["name"]: row for row in (await workers.state(url))["workers"]}
    told: list[dict[str, Any]] = []
    async with calls.session() as http:
        load = Load(url, rate)
        sending = asyncio.create_task(load.run(http))

        async def works() -> bool:
            rows = (await workers.state(url))["workers"]
            return bool(next(row["inflight"] for row in rows if row["name"] == name))

        async def stuck() -> bool:
            rows = (await workers.state(url))["workers"]
            found = next(row["stuck"] for row in rows if row["name"] == name)
            told.extend([found] * bool(found))
            return bool(found) and found["state"] == "stuck"

        await calls.until(works, f"{name} has requests")
        begin = time.monotonic()
        os.kill(pid, how)
        await calls.until(stuck, f"the router finds {name} stuck")
        noticed = time.monotonic() - begin
        back = await asyncio.to_thread(deployment.wait_ready, name, worker.restarts + 1)
        await workers.settled_but_busy(deployment)
        returned = time.monotonic() - begin
        sending.cancel()
        answers = await load.answers()
    print(
        f"{name} at {rate:g}/s by {how.name}: stuck after {noticed:.1f} s, back after "
        f"{returned:.1f} s, {len(answers)} requests, longest wait for a first token "
        f"{load.first_s:.1f} s, for another one {load.next_s:.1f} s"
    )
    assert [answer.error for answer in answers if answer.error] == []
    assert {len(answer.ids) for answer in answers} == {load.tokens}
    longest = max(load.first_s, load.next_s)
    assert longest < KV_S, "a request was forgotten until SGLang's own time was over"
    assert back.pid != worker.pid
    assert [each["state"] for each in told][-1] == "stuck"
    assert told[-1]["since"] < time.time()
    after = await workers.metrics(url)
    assert after[f'toolkit_router_worker_stuck_total{{worker="{name}"}}'] >= 1
    log = (deployment.run_dir / "router.log").read_text()
    assert f"{name} is stuck" in log
    assert before[name]["stuck"] is None


def test_a_stopped_decode_scheduler_is_left_and_started_again(deployment: Running) -> None:
    pid = schedulers(deployment, "decode-1")[0]
    calls.run(stand_still(deployment, "decode-1", pid, signal.SIGSTOP, 4))


CLIENTS = 24


def test_nobody_is_refused_while_the_only_prefill_worker_is_started_again(
    deployment: Running,
) -> None:
    """Clients that do not ask again: what is refused is lost."""
    requests = int(os.environ.get("TOOLKIT_TEST_REQUESTS", "150"))
    calls.run(workers.settled(deployment))
    worker = deployment.worker("prefill-0")
    assert worker.pid is not None
    pid = worker.pid

    async def check() -> list[calls.Answer]:
        gate, done = asyncio.Semaphore(CLIENTS), 0

        async def one(http: Any, number: int) -> calls.Answer:
            nonlocal done
            async with gate:
                body = calls.greedy(calls.prompt(f"only-{number}", 20), TOKENS, stream=True)
                answer = await calls.generate(http, deployment.router_url, body)
                done += 1
                return answer

        async with calls.session() as http:
            sending = [asyncio.create_task(one(http, n)) for n in range(requests)]
            while done < requests / 3:
                await asyncio.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            return await asyncio.gather(*sending)

    answers = calls.run(check())
    deployment.wait_ready("prefill-0", worker.restarts + 1)
    failed = [answer.error for answer in answers if answer.error]
    print(f"{len(failed)} of {len(answers)} failed")
    assert failed == []
    assert {len(answer.ids) for answer in answers} == {TOKENS}


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A deployment whose schedulers hang when they are told to."""
    folder = tmp_path_factory.mktemp("hanging")
    hang_plugin(folder / "plugin")
    described = {
        "name": "hanging",
        "prefill": role(),
        "decode": role(2),
        "router": {"kind": "toolkit"},
    }
    with pytest.MonkeyPatch.context() as environment:
        path = os.environ.get("PYTHONPATH", "")
        environment.setenv("PYTHONPATH", f"{folder / 'plugin'}{os.pathsep}{path}")
        with deployed(described, folder) as up:
            environment.setenv(WORKER_KEY_VARIABLE, up.worker_key)
            yield up


@pytest.mark.full
@pytest.mark.parametrize("rate", [1, 30])
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("decode-0", signal.SIGUSR1),
        ("decode-1", signal.SIGSTOP),
        ("prefill-0", signal.SIGSTOP),
        ("prefill-0", signal.SIGUSR1),
    ],
)
def test_whatever_stands_still_is_started_again(
    hanging: Running, name: str, how: signal.Signals, rate: float
) -> None:
    pid = schedulers(hanging, name)[0]
    calls.run(stand_still(hanging, name, pid, how, rate))


@pytest.mark.full
@pytest.mark.parametrize("rate", [1, 5, 30])
def test_a_tp_rank_that_stops_stops_its_worker(tmp_path: Path, rate: float) -> None:
    """With 2 cores for 5 schedulers 8 requests a second are the most that these keep up with when
    nothing stands still; at 30 the queue alone takes 24 s."""
    described = {
        "name": "tp",
        "prefill": role(),
        "decode": role(2, tp=2),
        "router": {"kind": "toolkit"},
    }
    with deployed(described, tmp_path) as up, pytest.MonkeyPatch.context() as environment:
        environment.setenv(WORKER_KEY_VARIABLE, up.worker_key)
        pid = schedulers(up, "decode-1")[-1]
        calls.run(stand_still(up, "decode-1", pid, signal.SIGSTOP, rate))
