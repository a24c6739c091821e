"""Traffic that the router has recorded is what was sent, and the simulator reads it."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.present import present
from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import idle, post
from toolkit.router.recording import Recording
from toolkit.router.request import Wanted
from toolkit.router.splitting import parse
from toolkit.settings.router.classes import Classes
from toolkit.settings.router.config import ConfigError
from toolkit.simulate.workloads.trace import of_trace

CLASSES = Classes(claim="all")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def generate(ids: list[int], tokens: int, stream: bool = True, n: int = 1) -> dict[str, Any]:
    sampling = {"max_new_tokens": tokens, "temperature": 0, "n": n}
    return {"input_ids": ids, "sampling_params": sampling, "stream": stream}


@pytest.mark.parametrize("dispatch", ["late", "concurrent"])
async def test_a_line_for_each_request_in_order_of_arrival(tmp_path: Path, dispatch: str) -> None:
    path = tmp_path / "traffic.jsonl"
    common, other = list(range(300, 500)), list(range(700, 1000))
    async with Cluster(config={"dispatch": dispatch, "record": str(path)}) as cluster:
        slow = asyncio.create_task(post(cluster, "/generate", generate(common, 60)))
        await asyncio.sleep(0.05)
        await post(cluster, "/generate", generate(common + other, 5, stream=False))
        await post(cluster, "/generate", generate(other, 3, n=2))
        assert (await post(cluster, "/generate", generate(other, 3, n=0)))[0] == 400
        await slow
        await cluster.until(idle)
    found = rows(path)
    lengths = [(row["input_length"], row["output_length"]) for row in found]
    assert lengths == [(200, 60), (500, 5), (300, 3), (300, 3)]
    assert [row["timestamp"] for row in found] == sorted(row["timestamp"] for row in found)
    first, second, third, fourth = (row["hash_ids"] for row in found)
    assert len(first) >= 3 and first == second[: len(first)]
    assert third == fourth and not set(third) & set(second)
    for row in found:
        assert abs(len(row["hash_ids"]) * row["block"] - row["input_length"]) <= 1.5 * row["block"]
    played = list(of_trace(path))
    assert [(r.prompt, r.output) for r in played] == lengths
    assert played[0].blocks == played[1].blocks[: len(first)]


async def test_who_goes_away_has_what_he_got(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    async with Cluster(config={"record": str(path)}) as cluster:
        async with aiohttp.ClientSession() as session:
            url = f"{cluster.url}/generate"
            async with session.post(url, json=generate([5] * 40, 5000)) as response:
                await response.content.readany()
        await cluster.until(idle)
    (row,) = rows(path)
    assert row["input_length"] == 40
    assert 0 < row["output_length"] < 5000


def sub_request(rid: str) -> Any:
    body = json.dumps({"rid": rid, "input_ids": [1, 2, 3]}).encode()
    return parse("/generate", body).sub_requests[0]


def test_times_never_go_back(tmp_path: Path) -> None:
    """Not within a run, and not after one whose clock was ahead."""
    path = tmp_path / "traffic.jsonl"
    path.write_text('{"timestamp": 9999999999999, "input_length": 1, "output_length": 1}\n')
    recording = Recording(str(path))
    entries = [
        recording.begin(sub_request(name), arrived) for name, arrived in (("a", 2.0), ("b", 1.0))
    ]
    recording.end(entries[1], 7)
    assert len(rows(path)) == 1  # the other one came before it
    recording.end(entries[0], 0)  # came to nothing
    recording.close()
    stamps = [row["timestamp"] for row in rows(path)]
    assert [row["output_length"] for row in rows(path)] == [1, 7]
    assert stamps == sorted(stamps)


def test_classes_are_recorded_and_played(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    recording = Recording(str(path))
    for tier in ("flex", "priority", "auto"):
        body = {"model": "m", "prompt": "three words here", "service_tier": tier}
        (asked,) = parse("/v1/completions", json.dumps(body).encode(), classes=CLASSES).sub_requests
        recording.end(recording.begin(asked, 1.0), 4)
    recording.close()
    assert ["class" in row for row in rows(path)] == [True, True, False]
    found = [request.request_class.value for request in of_trace(path)]
    assert found == ["best_effort", "latency_sensitive", "standard"]


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """/dev/full answers every write with ENOSPC."""
    path = tmp_path / "traffic.jsonl"
    recording = Recording(str(path))
    recording.end(recording.begin(sub_request("a"), 1.0), 4)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, present(recording._file._file))
    os.close(full)
    for name in ("b", "c"):
        recording.end(recording.begin(sub_request(name), 2.0), 4)
    recording.close()
    assert len(rows(path)) == recording.written == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "No space left" in caplog.text


CUT = """
import json, resource, sys
from toolkit.router.recording import Recording
from toolkit.router.splitting import (parse)
recording = Recording(sys.argv[1])
single = parse("/generate", json.dumps({"input_ids": [1, 2, 3]}).encode()).sub_requests[0]
recording.end(recording.begin(single, 1.0), 4)
size = len(open(sys.argv[1]).read())
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))
recording.end(recording.begin(single, 2.0), 4)
"""


def test_no_part_of_a_line_is_left(tmp_path: Path) -> None:
    """A file that may grow by 20 bytes only, less than a line."""
    path = tmp_path / "traffic.jsonl"
    subprocess.run([sys.executable, "-c", CUT, str(path)], check=True)
    assert [row["output_length"] for row in rows(path)] == [4]
    Recording(str(path)).close()  # the next router goes on there


def test_a_file_that_is_no_recording_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n")
    with pytest.raises(ConfigError, match="holds something else"):
        Recording(str(path))
    assert path.read_text() == "dear diary\n"
    with pytest.raises(ConfigError, match="cannot write"):
        Recording(str(tmp_path / "nowhere" / "file"))


def big(size: int) -> Any:
    body = json.dumps({"text": "a long prompt " * (size // 14), "sampling_params": {}}).encode()
    return parse("/generate", body, wanted=Wanted(blocks=True)).sub_requests[0]


@pytest.mark.slow
def test_what_is_held_of_a_request_is_its_line_and_not_its_body(tmp_path: Path) -> None:
    """A request of megabytes that waits for one before it holds kilobytes, whatever its size."""
    recording = Recording(str(tmp_path / "traffic.jsonl"))
    slow = recording.begin(sub_request("slow"), 1.0)

    def held(size: int, times: int = 8) -> int:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(times):
            asked = big(size)
            recording.end(recording.begin(asked, 2.0), 5, 1_000)
            del asked
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) // times

    tracemalloc.start()
    try:
        held(2**20, 1)  # what is imported and cached by the first one
        kept = [held(size) for size in (2**17, 2**19, 2**21)]
    finally:
        tracemalloc.stop()
    assert max(kept) < 16 * 1024, kept
    assert recording.written == 0
    recording.end(slow, 3)
    assert recording.written == 26
    recording.close()


def test_a_request_that_runs_too_long_is_given_up_when_lines_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that wait behind it are bounded; then they are written without it."""
    monkeypatch.setattr("toolkit.router.recording.HELD_BYTES", 64 * 1024)
    path = tmp_path / "traffic.jsonl"
    recording = Recording(str(path))
    slow = recording.begin(sub_request("slow"), 1.0)
    asked, most = big(2**16), 0
    for number in range(100):
        recording.end(recording.begin(asked, 2.0), number + 1)
        most = max(most, sum(len(entry.line or b"") for entry in recording._entries))
    assert most <= 64 * 1024
    assert recording.given_up == 1
    recording.end(slow, 9)  # its line was given up, and it does not come twice
    recording.close()
    assert [row["output_length"] for row in rows(path)] == list(range(1, 101))
