"""The router writes its decisions where the environment asks for it, and they come out the same."""

from pathlib import Path

import pytest

from tests.unit.router.house import House, turns
from toolkit.contract.variables import ROUTER_RECORD_VARIABLE
from toolkit.decide.replay import replay
from toolkit.policies import RequestView, WorkerView


@pytest.mark.parametrize("policy", ["br0", "brh@survival", "composed@filter+level+user"])
async def test_rounds_choices_and_tellings_of_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setenv(ROUTER_RECORD_VARIABLE, str(tmp_path / "rec"))
    house = House(ranks=2, policy=policy)
    for size in (70, 500, 90, 40):
        house.enter(size)
        await turns()
    house.take()
    for _ in range(4):
        house.end(0)
    workers = [WorkerView("p0", inflight=3), WorkerView("p1")]
    for _ in range(3):
        house.policies.policies["prefill"].choose(workers, RequestView())
    decode = (tmp_path / "rec.decode.jsonl").read_text().splitlines()
    rounds = replay(decode)
    assert sum(len(each.recorded) for each in rounds if isinstance(each.recorded, list)) == 4
    assert not any(each.differs for each in rounds)
    followed = [line for line in decode if line.startswith(('{"sent"', '{"ended"'))]
    assert len(followed) == 8  # whatever the policy needs: a what-if wants to know
    prefill = replay((tmp_path / "rec.prefill.jsonl").read_text().splitlines())
    assert len(prefill) == 4 + 3 and not any(each.differs for each in prefill)


async def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROUTER_RECORD_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    house = House(ranks=1)
    house.enter(5)
    await turns()
    assert not list(tmp_path.iterdir())
