"""No log can be filled from outside: of a helper, of a real router, and of every logger of ours."""

import ast
import asyncio
import logging
import re
from pathlib import Path

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, post
from toolkit import limited_logs
from toolkit.limited_logs import BURST, PLACE_BURST, Limited, limited_logger

ROOT = Path(__file__).parents[2]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(limited_logs, "monotonic", made)
    return made


def record(line: int, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("x", logging.WARNING, "here.py", line, message, args, None)


def said(limited: Limited, *records: logging.LogRecord) -> list[str]:
    return [each.getMessage() for each in records if limited.filter(each)]


def test_a_source_says_a_few_lines_then_one_a_second_with_a_count(clock: Clock) -> None:
    limited = Limited()
    lines = [record(1, "worker %s sent %d", "d-0", 7) for _ in range(100)]
    assert said(limited, *lines) == ["worker d-0 sent 7"] * BURST
    clock.now = 1.0
    again = "worker d-0 sent 7 (95 more like it were not logged)"
    assert said(limited, *lines[:50]) == [again]
    assert limited.left_out == 95 + 49
    clock.now = 100.0
    assert (
        len(said(limited, *(record(1, "worker %s sent %d", "d-0", 7) for _ in "x" * 99))) == BURST
    )


def test_another_source_is_heard_beside_it_and_one_place_has_its_own_end(clock: Clock) -> None:
    limited = Limited()
    assert len(said(limited, *[record(1, "%s fails", "d-0") for _ in range(1000)])) == BURST
    assert said(limited, record(1, "%s fails", "d-1")) == ["d-1 fails"]
    assert said(limited, record(2, "%s fails", "d-0")) == ["d-0 fails"]
    # A first argument that is never the same does not get round it.
    many = [record(3, "%s fails", f"d-{number}") for number in range(10_000)]
    assert len(said(limited, *many)) == PLACE_BURST
    assert len(limited._known) <= limited_logs.SOURCES


def test_a_logger_of_a_process_with_other_handlers_keeps_to_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = limited_logger("toolkit.test_limited_logs")
    assert limited_logger("toolkit.test_limited_logs").filters == log.filters != []
    for _ in range(500):
        log.error("a request failed")
    assert len(caplog.records) < 20


async def test_a_worker_or_a_client_cannot_fill_the_router_s_log() -> None:
    """Malformed events by the thousand, and requests that fail on every worker."""
    config = {"max_retries": 0, "eject_share": 0}
    async with Cluster(decodes=2, config=config) as cluster:
        wrong = ('{"type":"load","running":-1}', '{"type":"new"}', "no JSON")
        for text in wrong:
            for name in ("decode-0", "decode-1"):
                await cluster.make(name, f"babble 4000 {text}")
        broken = bodies(2, fail_status=500)["/v1/completions"]
        for _ in range(5):
            calls = [post(cluster, "/v1/completions", broken) for _ in range(40)]
            assert {status for status, _ in await asyncio.gather(*calls)} == {500}

        async def heard() -> int:
            async with cluster.session.get(cluster.url + "/metrics") as answer:
                text = await answer.text()
            found = re.search(r"toolkit_router_log_lines_left_out ([\d.e+]+)", text)
            assert found is not None
            return int(float(found[1]))

        for _ in range(200):
            if await heard() > 23_000:
                break
            await asyncio.sleep(0.05)
        lines = cluster.log.read_text().splitlines()
        assert await heard() > 23_000
        assert len(lines) < 200, len(lines)
        told = [line for line in lines if "malformed event" in line]
        assert any("decode-0" in line for line in told)
        assert any("decode-1" in line for line in told)


def test_every_logger_of_a_worker_process_is_a_limited_one() -> None:
    """Whoever writes a patch need not know which of its lines a client can cause."""
    made = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "patches").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "getLogger"
        and node.args
    }
    assert made == set()
