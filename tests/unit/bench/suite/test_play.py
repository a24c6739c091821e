"""There and back again: which variant is started when, and what ends it. Workers are made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from toolkit.bench.class_ratios import CLASSES
from toolkit.bench.errors import BenchError
from toolkit.bench.source import Source
from toolkit.bench.suite import play as play_module
from toolkit.bench.suite.expert_questions import CHUNK, EPLB, INTERVAL, LOCATION, PlacedExperts
from toolkit.bench.suite.experts_moved import ExpertsMoved
from toolkit.bench.suite.play import LONGEST, Suite, reason
from toolkit.bench.suite.question import Question, SuiteArm
from toolkit.bench.suite.questions import questions_for
from toolkit.bench.suite.start import decode_steps
from toolkit.bench.suite.traffic import SuiteLoad, with_classes
from toolkit.bench.suite.written import as_json, chosen, write_deployment, write_page
from toolkit.bench.workload import Item, Workload
from toolkit.settings.load import load_deployment

DOCUMENT = {"name": "a", "model": "embedded", "decode": {"replicas": 2},
            "router": {"profile": "embedded"}}  # fmt: skip


class Made:
    """A suite whose arms take as long as `takes` says, a little more in each round."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, takes: dict[str, float]
    ) -> None:
        self.started: list[str] = []
        self.said: list[str] = []
        self.breaks: BaseException | None = None
        self.dead: set[str] = set()
        load = SuiteLoad(Source(), requests=8, concurrency=4, rounds=8)
        self.suite = Suite(DOCUMENT, questions_for(DOCUMENT), load, folder, minutes=60.0)

        async def play(
            suite: Suite,
            url: str,
            arms: list[tuple[Question, SuiteArm]],
            numbers: range,
        ) -> None:
            if self.breaks is not None:
                raise self.breaks
            for number in numbers:
                for question, arm in arms:
                    seconds = takes.get(arm.name, 100.0) * (1 + 0.001 * number)
                    figures: dict[str, Any] = {
                        "mean_e2e_latency_ms": seconds, "mean_tpot_ms": seconds,
                        "mean_ttft_ms": seconds, "output_throughput": 1e4 / seconds,
                    }  # fmt: skip
                    figures[CLASSES] = {
                        kind: dict(figures) for kind in ("latency_sensitive", "best_effort")
                    }
                    key = question.traffic, arm.name
                    suite.played.setdefault(key, {})[number] = figures

        monkeypatch.setattr(Suite, "_play", play)

    @contextmanager
    def host(self, path: Path, run_dir: Path | None) -> Iterator[Any]:
        load_deployment(path)
        self.started.append(path.stem)
        if path.stem in self.dead:
            raise BenchError(f"{path} did not start:\n decode-0 ended\nValueError: {path.stem}\n\n")
        yield SimpleNamespace(router_urls=["http://nowhere"])

    def run(self) -> dict[str, str]:
        self.suite.run(self.host, self.said.append)
        return {each.question.system: each.answer for each in self.suite.verdicts()}


WINNERS = {"late dispatch": 90.0, "eldr": 80.0, "stops between layers": 70.0, "moves": 120.0}


def test_it_ends_when_all_is_decided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Made(monkeypatch, tmp_path, {**WINNERS, "level": 99.9})
    assert made.run() == {
        "late dispatch": "on", "level KV": "off", "expert locality": "on",
        "preempted prompts": "on", "moves": "off",
    }  # fmt: skip
    there = ["base", "experts", "stops", "chunks of 512", "moves"]
    assert made.started[:10] == [*there, *there[::-1]]
    assert made.started[10:] == there, "three starts of each are three samples"
    assert "decided" in made.said[-1]
    assert "[0 of 60 minutes]" in made.said[2] and "late dispatch" in made.said[2]
    kept = json.loads((tmp_path / "suite.json").read_text())
    assert {each["arm"] for each in kept} >= {"eldr", "level", "moves"}


def test_the_time_ends_it_and_what_was_measured_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Made(monkeypatch, tmp_path, WINNERS)
    made.suite.minutes = 0.0
    assert set(made.run().values()) == {"undecided"} and made.started == []
    assert "minutes are over" in made.said[-1]


def test_ctrl_c_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Made(monkeypatch, tmp_path, WINNERS)
    made.breaks = KeyboardInterrupt()
    made.run()
    assert made.suite.interrupted and made.started == ["base"]
    assert as_json(made.suite, made.suite.verdicts())["interrupted"]


def test_what_is_no_result_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Made(monkeypatch, tmp_path, WINNERS)
    made.breaks = BenchError("a worker died")
    with pytest.raises(BenchError, match="a worker died"):
        made.run()


def test_who_does_not_start_is_a_result_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Made(monkeypatch, tmp_path, {**WINNERS, "level": 99.9})
    made.dead = {"moves", "chunks of 512"}
    answers = made.run()
    assert answers["moves"] == answers["preempted prompts"] == "undecided"
    assert (answers["late dispatch"], answers["expert locality"]) == ("on", "on")
    assert [made.started.count(name) for name in ("moves", "chunks of 512", "stops")] == [1, 1, 1]
    assert "every question is decided" in made.said[-1], "what cannot be told is settled, too"
    why = {each.question.system: each.why for each in made.suite.verdicts()}
    assert why["moves"] == "moves did not run: ValueError: moves"
    assert "chunks of 512 did not run: ValueError: chunks of 512" in why["preempted prompts"]
    assert "moves does not run here: ValueError: moves" in made.said
    told = as_json(made.suite, made.suite.verdicts())
    assert set(told["stopped"]) == made.dead and "decode-0 ended" in told["stopped"]["moves"]
    write_page(tmp_path / "suite.html", made.suite, made.suite.verdicts(), "Does it pay?")
    page = (tmp_path / "suite.html").read_text()
    assert "What did not run" in page and "decode-0 ended" in page
    assert "moves" not in str(chosen(made.suite, made.suite.verdicts()).get("router")), "as it was"


def test_without_the_base_there_is_nothing_to_compare_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Made(monkeypatch, tmp_path, WINNERS)
    made.dead = {"base"}
    with pytest.raises(BenchError, match="ValueError: base"):
        made.run()


def test_the_reason_is_the_last_error_that_is_named() -> None:
    log = "it did not start\n  TypeError: deep\nOSError: first\nx.y.BadError: last\n  at line 3\n"
    assert reason(log) == "x.y.BadError: last"
    assert reason("no memory\n\n") == "no memory" and reason("") == "nobody knows why"
    assert len(reason("ValueError: " + "x" * 999)) == LONGEST


def test_decode_steps_are_those_of_the_busiest_rank() -> None:
    rows = [
        {"role": "decode", "steps": {"steps": 3}},
        {"role": "decode", "steps": {"steps": 9}},
        {"role": "decode"},
        {"role": "prefill", "steps": {"steps": 99}},
    ]
    assert decode_steps({"workers": rows}) == 9 and decode_steps({"workers": []}) == 0


WIDE = {
    "name": "a",
    "model": "embedded",
    "decode": {"tp": 2, "ep": 2, "args": {"ep-num-redundant-experts": 4}},
    "router": {"profile": "embedded"},
}
PLACED = PlacedExperts(
    {"eplb": "/load.json", "joint": "/affinity.json"}, loads={"joint": (1.05, 0.4)}
)


def of_experts(monkeypatch: pytest.MonkeyPatch, folder: Path, takes: dict[str, float]) -> Made:
    """It asks whether experts that are relocated pay."""
    made = Made(monkeypatch, folder, takes)
    seen = ExpertsMoved("x", 2, (1.3, 1.1))
    monkeypatch.setattr(play_module, "moved", lambda *_: nullcontext(seen))
    made.suite.document = WIDE
    made.suite.asked = questions_for(WIDE, placed=PLACED)
    made.suite.asked.only(["relocated experts"])
    made.suite.placed = PLACED
    return made


def test_the_others_go_on_without_who_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = of_experts(monkeypatch, tmp_path, {"relocated": 80.0})
    made.dead = {"EPLB every 250"}
    assert made.run() == {"relocated experts": "undecided"}
    assert made.started.count("EPLB every 250") == 1 and made.started.count("base") > 1
    (verdict,) = made.suite.verdicts()
    assert "EPLB every 250 did not run: ValueError" in verdict.why and verdict.ratio is not None
    assert verdict.ratio.value == pytest.approx(0.8)
    assert chosen(made.suite, [verdict]) == WIDE


@pytest.mark.parametrize(
    ("takes", "relocates", "args"),
    [
        ({"relocated": 80.0}, True, {}),
        (
            {"EPLB every 250": 80.0},
            False,
            {EPLB: True, INTERVAL: 250, CHUNK: 8},
        ),
        ({"placed by load": 80.0}, False, {LOCATION: "/load.json"}),
        ({"placed by load": 99.5}, False, {}),  # by chance, as far as anybody can tell
        ({}, False, {}),
    ],
)
def test_the_file_gets_who_moves_experts_best(
    takes: dict[str, float],
    relocates: bool,
    args: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    made = Made(monkeypatch, tmp_path, takes)
    monkeypatch.setattr(
        play_module, "moved", lambda *_: nullcontext(ExpertsMoved("x", 2, (1.3, 1.1)))
    )
    made.suite.document = WIDE
    made.suite.asked = questions_for(WIDE, placed=PLACED)
    made.suite.asked.only(["relocated experts"])
    made.suite.placed = PLACED
    assert made.run() == {"relocated experts": "on" if relocates else "off"}
    path = tmp_path / "best.yaml"
    write_deployment(path, made.suite, made.suite.verdicts())
    decode = load_deployment(path).decode
    assert decode.relocate is relocates
    assert decode.args == {"ep-num-redundant-experts": 4, **args}
    assert ("# Run beside it: toolkit relocate --every 1000" in path.read_text()) is relocates
    write_page(tmp_path / "suite.html", made.suite, made.suite.verdicts(), "Does it pay?")
    page = (tmp_path / "suite.html").read_text()
    assert "Load between experts" in page and "1.300" in page and "1.050" in page


def test_the_file_that_is_written_has_what_pays_and_is_a_deployment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Made(monkeypatch, tmp_path, {**WINNERS, "level": 85.0})
    made.run()
    verdicts = made.suite.verdicts()
    path = tmp_path / "best.yaml"
    write_deployment(path, made.suite, verdicts)
    deployment = load_deployment(path)
    assert deployment.router.decode_policy == "composed@eldr+level"
    assert deployment.prefill.preempt is not None and deployment.router.rebalance is not None
    assert not deployment.router.rebalance.on
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any("moves: off" in line for line in head) and any("not asked" in line for line in head)
    assert yaml.safe_load(path.read_text()) == chosen(made.suite, verdicts)
    write_page(tmp_path / "suite.html", made.suite, verdicts, "Does it pay?")
    page = (tmp_path / "suite.html").read_text()
    assert "preempted prompts" in page and "0.70 (" in page and "not asked" in page


def written(
    monkeypatch: pytest.MonkeyPatch, folder: Path, takes: dict[str, float], router: dict[str, Any]
) -> dict[str, Any]:
    """The router's part of what is written for a file with that one."""
    made = Made(monkeypatch, folder, takes)
    made.suite.document = {**DOCUMENT, "router": {"profile": "embedded", **router}}
    made.run()
    found: dict[str, Any] = chosen(made.suite, made.suite.verdicts())["router"]
    return found


def test_where_ours_do_not_pay_the_best_balancer_chooses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    best = {"pooled@least_tokens": 80.0}
    assert written(monkeypatch, tmp_path, best, {})["decode_policy"] == "pooled@least_tokens"
    theirs = {"decode_policy": "composed@eldr+level", "tau": 0.2}
    found = written(monkeypatch, tmp_path, best, theirs)
    assert found["decode_policy"] == "pooled@least_tokens"
    assert "profile" not in found and "tau" not in found
    only_level = {"level": 80.0}
    assert written(monkeypatch, tmp_path, only_level, theirs)["decode_policy"] == "level"


def test_what_nobody_measured_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Made(monkeypatch, tmp_path, WINNERS)
    assert chosen(made.suite, made.suite.verdicts()) == DOCUMENT


def test_requests_without_a_class_get_one_and_long_prompts_where_they_are_ours() -> None:
    plain = Workload("w", tuple(Item(f"prompt {n}", 40) for n in range(9)))
    mixed = with_classes(plain, lengthen=True)
    kinds = [item.kind for item in mixed]
    assert kinds == ["latency_sensitive", "best_effort", "best_effort"] * 3
    lengths = [len(str(item.prompt)) for item in mixed]
    assert lengths[1] > 10 * lengths[0]
    theirs = with_classes(plain, lengthen=False)
    assert [item.prompt for item in theirs] == [item.prompt for item in plain]
    named = Workload("w", (Item("a", 4, kind="best_effort"),))
    assert with_classes(named, lengthen=True) is named
