"""What a scheduler says of itself, round by round."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from patches.scheduler_state import current
from patches.steps.usual_times import UsualTimes
from patches.streams import heartbeat as patch
from patches.streams.heartbeat import KEPT, SchedulerProgress
from toolkit.contract import heartbeat
from toolkit.contract.heartbeat import Beat, HeartbeatFile
from toolkit.contract.variables import HEARTBEAT_VARIABLE


@pytest.fixture
def rounds(tmp_path: Path) -> SchedulerProgress:
    return SchedulerProgress(HeartbeatFile(tmp_path / "scheduler-0"), UsualTimes(shapes=False))


def said(tmp_path: Path) -> Beat:
    beat = heartbeat.read(tmp_path / "scheduler-0")
    assert beat is not None
    return beat


def test_a_forward_is_announced_before_it_begins_and_until_its_result_is_processed(
    rounds: SchedulerProgress, tmp_path: Path
) -> None:
    rounds.round()
    assert said(tmp_path) == Beat(1)
    rounds.begin(1, decode=False, tokens=100, now=0.0)
    assert said(tmp_path) == Beat(2, True, "first prefill of 100 tokens")
    rounds.end(1, now=1.0)
    assert said(tmp_path) == Beat(3, True)
    rounds.begin(2, decode=False, tokens=300, now=1.0)
    assert said(tmp_path).doing == "prefill of 300 tokens"
    assert said(tmp_path).expected_s == pytest.approx(4.0)


def test_of_forwards_that_overlap_the_longest_counts(
    rounds: SchedulerProgress, tmp_path: Path
) -> None:
    for number, decode in ((1, False), (2, True)):
        rounds.begin(number, decode, 10, now=0.0)
        rounds.end(number, now=0.5)
    rounds.begin(3, decode=False, tokens=1000, now=1.0)
    rounds.begin(4, decode=True, tokens=1, now=1.1)
    assert said(tmp_path).doing == "prefill of 1000 tokens"
    rounds.end(3, now=2.0)
    assert said(tmp_path).doing == "decode step"


def test_one_that_nobody_can_foresee_counts_before_all_others(
    rounds: SchedulerProgress, tmp_path: Path
) -> None:
    rounds.begin(1, decode=False, tokens=10, now=0.0)
    rounds.end(1, now=0.5)
    rounds.begin(2, decode=False, tokens=10, now=1.0)
    rounds.begin(3, decode=True, tokens=1, now=1.0)
    assert said(tmp_path)[2:] == ("first decode step", 0.0)


def test_a_result_that_never_comes_is_forgotten(rounds: SchedulerProgress, tmp_path: Path) -> None:
    rounds.begin(1, decode=False, tokens=10, now=0.0)
    for number in range(2, 3 + KEPT):
        rounds.begin(number, decode=True, tokens=1, now=0.0)
        rounds.end(number, now=0.1)
    assert said(tmp_path).doing == ""
    rounds.begin(99, decode=True, tokens=1, now=0.0)
    rounds.rest(works=False)
    rounds.round()
    assert said(tmp_path)[1:3] == (False, "")


def test_an_order_is_announced_and_a_request_is_not(
    rounds: SchedulerProgress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(current().parts, SchedulerProgress, rounds)
    seen: list[Beat] = []

    def original(scheduler: object, received: object) -> None:
        seen.append(said(tmp_path))

    order = type("UpdateWeightFromDiskReqInput", (), {})()
    request = type("TokenizedGenerateReqInput", (), {})()
    for received in ([], [request], [request, order]):
        patch._come_round(original, SimpleNamespace(), received)
    assert [(beat.works, beat.doing) for beat in seen] == [
        (False, ""),
        (True, ""),
        (True, "UpdateWeightFromDiskReqInput"),
    ]
    assert said(tmp_path).doing == ""


def test_a_rank_that_follows_another_writes_for_its_launcher_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = SimpleNamespace(dp_rank=1)
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(tmp_path))
    monkeypatch.delitem(current().parts, SchedulerProgress, raising=False)
    silent = SimpleNamespace(socket=None)
    scheduler = SimpleNamespace(ipc_channels=SimpleNamespace(send_to_tokenizer=silent), ps=told)
    monkeypatch.setattr(patch.layout, "rank", lambda scheduler: scheduler.ps.dp_rank)  # type: ignore[attr-defined]
    patch._come_round(lambda *_: None, scheduler, [])
    assert heartbeat.read_all(tmp_path) == {heartbeat.follower(os.getpid()): Beat(1)}
    assert patch.read_ranks() == []
    silent.socket = object()
    monkeypatch.delitem(current().parts, SchedulerProgress, raising=False)
    patch._come_round(lambda *_: None, scheduler, [])
    assert patch.read_ranks() == [(1, Beat(1))]
