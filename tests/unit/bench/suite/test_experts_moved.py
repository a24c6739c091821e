"""What experts did while a variant was up: EPLB by its log, and a relocator that runs beside it."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench.errors import BenchError
from toolkit.bench.suite import experts_moved
from toolkit.bench.suite.experts_moved import ExpertsMoved, moved, relocate_flags
from toolkit.bench.suite.question import MovingExperts

LINE = "[2026-11-29 23:27:53 DP{} TP{} EP{}] [EPLBManager] rebalance {}\n"


def test_rebalances_are_counted_by_the_rank_that_says_most(tmp_path: Path) -> None:
    log = LINE.format(0, 0, 0, "start") + "x" * 3_000_000 + "\n"
    log += "".join(LINE.format(rank, rank, rank, "end time=0.7s") for rank in (0, 1, 1))
    (tmp_path / "decode-0.log").write_text(log)
    (tmp_path / "prefill-0.log").write_text(LINE.format(0, 0, 0, "end") * 9)
    with moved("EPLB", MovingExperts(10, relocates=False), tmp_path, 8) as found:
        assert found.times == 0
    assert found == ExpertsMoved("EPLB", 2)


@given(st.integers(1, 100_000), st.integers(1, 10_000))
def test_enough_is_sampled_for_a_decision_and_no_more(every: int, in_flight: int) -> None:
    words = relocate_flags(every, in_flight)
    told = dict(zip(words[::2], words[1::2], strict=True))
    tokens, share = int(told["--tokens"]), float(told["--share"])
    assert 256 <= tokens <= 8192 and 0.1 <= share <= 1 and told["--every"] == str(every)
    if tokens > 256:
        assert share * every * in_flight >= tokens, "decoded tokens alone are enough"


def test_a_relocator_that_does_not_start_is_no_silent_arm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a folder without a run."""
    (tmp_path / "state.json").write_text(json.dumps({"workers": []}))
    with (
        pytest.raises(BenchError, match="toolkit relocate ended at its start: "),
        moved("relocated", MovingExperts(10, relocates=True), tmp_path, 8),
    ):
        pass


def decided(outcome: str, before: float, after: float) -> dict[str, Any]:
    return {"outcome": outcome, "balance": [before, after]}


@pytest.mark.parametrize(
    ("rows", "balance"),
    [
        ([decided("moved", 1.4, 1.1)], (1.4, 1.1)),
        ([decided("moved", 1.4, 1.1), decided("stays", 1.2, 1.1)], (1.4, 1.2)),
        ([decided("would move", 1.4, 1.1)], (1.4, 1.4)),
        ([], None),
    ],
)
async def test_the_load_is_that_of_the_first_map_and_of_the_last(
    rows: list[dict[str, Any]], balance: tuple[float, float] | None
) -> None:
    found = ExpertsMoved("relocated")
    state = {"state": "watching", "decided": rows, "orders": 5, "longest_s": 0.25}
    await asked(found, state)
    assert found == ExpertsMoved("relocated", 5, balance, 0.25)


async def test_a_relocator_that_is_locked_out_is_said() -> None:
    state = {"state": "decode-0: Unauthorized", "decided": [], "orders": 0, "longest_s": 0.0}
    with pytest.raises(BenchError, match="moves nothing on decode-0: decode-0: Unauthorized"):
        await asked(ExpertsMoved("relocated"), state)


async def test_a_relocator_that_is_gone_is_said() -> None:
    with pytest.raises(BenchError, match="toolkit relocate does not answer"):
        await experts_moved._ask("http://127.0.0.1:1", ExpertsMoved("relocated"))


async def asked(found: ExpertsMoved, state: dict[str, Any]) -> None:
    """By a relocator of one server that says this."""

    async def show(request: web.Request) -> web.Response:
        return web.json_response({"decode-0": state})

    app = web.Application()
    app.router.add_get("/", show)
    app.router.add_post("/relocate", show)
    async with TestServer(app) as server:
        await experts_moved._ask(str(server.make_url("")).rstrip("/"), found)
