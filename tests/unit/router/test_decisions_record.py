"""The router writes its decisions where the environment asks for it, and they come out the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.router.house import House, run, turns
from toolkit.contract.variables import ROUTER_RECORD_VARIABLE
from toolkit.decide.replay import replay
from toolkit.policies import RequestView, WorkerView
from toolkit.router.decisions import DecisionFile
from toolkit.settings.router.config import ConfigError


@pytest.mark.parametrize("policy", ["br0", "brh@survival", "composed@filter+level+user"])
def test_rounds_choices_and_tellings_of_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setenv(ROUTER_RECORD_VARIABLE, str(tmp_path / "rec"))

    async def check() -> None:
        house = House(ranks=2, policy=policy)
        for size in (70, 500, 90, 40):
            house.enter(size)
            await turns()
        house.take()
        for _ in range(4):
            house.end(0)
        workers = [WorkerView("p0", inflight=3), WorkerView("p1")]
        for _ in range(3):
            house.dispatcher.policies["prefill"].choose(workers, RequestView())

    run(check)
    decode = (tmp_path / "rec.decode.jsonl").read_text().splitlines()
    rounds = replay(decode)
    assert sum(len(each.recorded) for each in rounds if isinstance(each.recorded, list)) == 4
    assert not any(each.differs for each in rounds)
    followed = [line for line in decode if line.startswith(('{"sent"', '{"ended"'))]
    assert len(followed) == 8  # whatever the policy needs: a what-if wants to know
    prefill = replay((tmp_path / "rec.prefill.jsonl").read_text().splitlines())
    assert len(prefill) == 3 and not any(each.differs for each in prefill)


def test_a_file_that_is_full_or_gone_ends_with_a_whole_line_and_serving_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = DecisionFile(tmp_path / "a.jsonl", most=10)
    for line in ("12345\n", "1234\n", "1\n", "2\n"):
        file.write(line)
    assert (tmp_path / "a.jsonl").read_text() == "12345\n"  # nothing behind a line that is lost
    assert caplog.text.count("decisions are no longer recorded") == 1
    full = DecisionFile(tmp_path / "b.jsonl")
    full._file.close()
    with Path("/dev/full").open("ab", buffering=0) as nowhere:
        full._file = nowhere
        full.write("1\n")
    assert "No space left" in caplog.text
    with pytest.raises(ConfigError, match="record_decisions: cannot write"):
        DecisionFile(tmp_path / "nowhere" / "a.jsonl")


def test_a_file_that_is_there_is_appended_to_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for number in range(3):
        file = DecisionFile(path, most=5)
        file.write(f"{number}\n")
        file.close()
    assert path.read_text() == "0\n1\n"


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROUTER_RECORD_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)

    async def check() -> None:
        house = House(ranks=1)
        house.enter(5)
        await turns()

    run(check)
    assert not list(tmp_path.iterdir())
