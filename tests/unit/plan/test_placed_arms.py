"""Experts that are placed or move, among the systems that a plan is asked about."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.present import present
from tests.unit.plan.test_placing import (
    ARRAYS,
    LINKED,
    PROFILE,
    TOPOLOGY,
    candidate,
    document,
    layouts,
)
from toolkit.bench.stats import Ratio
from toolkit.bench.suite.question import Question, Subject
from toolkit.bench.suite.questions import questions_for
from toolkit.bench.suite.verdicts import Answer, SuiteVerdict
from toolkit.cli.main import app
from toolkit.placement.relocation import copies
from toolkit.plan.arithmetic import Arithmetic, LaidStep
from toolkit.plan.candidate import Given
from toolkit.plan.expert_layout import Lay, RelocationCost
from toolkit.plan.fitted_requests import FittedRequests
from toolkit.plan.placed_arms import (
    ANY_PLACEMENT,
    NOT_SENT,
    SHARES,
    SUBJECTS,
    PlacedArms,
    agreed,
)
from toolkit.plan.planner import Task
from toolkit.plan.systems import SystemsPlanned, answer
from toolkit.relocate.pace import ORDER_S
from toolkit.settings.document import Document
from toolkit.simulate.costs.linear import Linear
from toolkit.simulate.costs.links import Links, Work
from toolkit.simulate.costs.overlapped import Overlapped
from toolkit.simulate.request import Request
from toolkit.simulate.workloads.traffic import azure_like, generate

FITTED = FittedRequests.of_profile(PROFILE, ARRAYS, 4)
UNLINKED = LINKED.model_copy(update={"links": None})
STAYS = RelocationCost(None, 1e9)
MOVED, PLACED = SUBJECTS


def arms(made: Document | None = None, **changes: Any) -> PlacedArms:
    made = document() if made is None else made
    given: dict[str, Any] = {"layouts": layouts(moving=STAYS), "cost": LINKED} | changes
    return PlacedArms(made, questions_for(made, placed=ANY_PLACEMENT), **given)


def question(found: PlacedArms, system: Subject) -> Question:
    return next(each for each in found.asked.questions if each.system == system)


def test_arms_lie_as_their_files_would_have_them() -> None:
    found = arms(document(args={"moe-a2a-backend": "deepep", "ep_num_redundant_experts": 4}))
    moved = question(found, MOVED)
    assert {arm.name: found.lay(arm, lambda steps: steps // 10) for arm in moved.arms} == {
        "relocated": Lay("joint", 4, 1000, 100),
        "experts in order": Lay("linear", 4),
        "placed by load": Lay("eplb", 4),
        "EPLB every 1000": Lay("eplb", 4, 1000, 100, True),
        "EPLB every 250": Lay("eplb", 4, 250, 25, True),
    }
    placed = {arm.name: arm for arm in question(found, PLACED).arms}
    assert found.lay(placed["placed by the profile"], int) == Lay("joint", 4)
    assert [name for name, arm in placed.items() if found.overlaps(arm)] == [
        "placed, with overlap",
        "with overlap",
    ]
    assert found.lay(placed["placed, with overlap"], int).kind == "joint"


def test_overlap_is_played_at_several_shares_or_not_at_all() -> None:
    found = arms()
    assert found.shares(question(found, PLACED)) == SHARES
    assert found.shares(question(found, MOVED)) == SHARES[:1]
    assert not found.not_played(question(found, PLACED))
    unknown = arms(cost=UNLINKED)
    placed = question(unknown, PLACED)
    assert set(unknown.not_played(placed)) == {"with overlap", "placed, with overlap"}
    assert not unknown.why_not(placed) and unknown.shares(placed) == SHARES[:1]
    has = {"moe-a2a-backend": "deepep", "enable_two_batch_overlap": True}
    for cost, why in ((LINKED, ""), (UNLINKED, NOT_SENT)):
        own = arms(document(args=has), cost=cost)
        assert own.why_not(question(own, PLACED)) == why, "all arms but one overlap"
        assert own.why_not(question(own, MOVED)) == why


def test_an_overlap_of_nothing_is_no_arm() -> None:
    """SGLang refuses it where no rank sends anything to another."""
    made = document(dp=1, dp_attention=False, args={})
    found = arms(made)
    asked = question(found, PLACED)
    kept = found.could_run(asked, candidate(made))
    assert [arm.name for arm in kept.arms] == [
        "placed by the profile",
        "experts in order",
        "placed by load",
    ]
    assert not any(map(found.overlaps, kept.arms)) and any(map(found.overlaps, asked.arms))
    made = document(dp=1, dp_attention=False)
    scattered = arms(made)
    asked = question(scattered, PLACED)
    assert scattered.could_run(asked, candidate(made)) == asked


def test_requests_are_laid_with_their_experts_where_that_can_be() -> None:
    found = arms()
    asked = found.could_run(question(found, PLACED), candidate(document()))
    laid = {arm.name: arm for arm in asked.with_it[2:]}
    assert list(laid) == ["laid with requests by the profile", "laid with requests, with overlap"]
    for name, arm in laid.items():
        assert found.lay(arm, int) == Lay("nodes") and arm.policies["decode"] == "eldr"
        assert found.overlaps(arm) is ("overlap" in name)
    moved = question(found, MOVED)
    assert found.could_run(moved, candidate(document())) == moved
    near = arms(layouts=layouts(near=False, moving=STAYS))
    asked = question(near, PLACED)
    assert near.could_run(asked, candidate(document())) == asked


@pytest.mark.parametrize(
    ("system", "changes", "why"),
    [
        (MOVED, {}, ""),
        (PLACED, {}, ""),
        (PLACED, {"layouts": layouts()}, ""),
        (MOVED, {"layouts": layouts()}, "--move-gb-s"),
        (MOVED, {"layouts": layouts(moving=STAYS, expert_bytes=None)}, "expert weighs"),
        (MOVED, {"layouts": None}, "--placement search"),
        (PLACED, {"layouts": None}, "--placement search"),
    ],
)
def test_what_cannot_be_simulated_says_why(system: Subject, changes: Any, why: str) -> None:
    found = arms(**changes)
    said = found.why_not(question(found, system))
    assert why in said and bool(said) is bool(why)


def test_what_only_the_suite_can_start_is_left_to_it() -> None:
    made = document(expert_placement="clusters")
    found = arms({**made, "router": {**made["router"], "decode_policy": "eldr"}})
    assert "expert_placement is not simulated" in found.why_not(question(found, PLACED))
    assert not found.why_not(question(found, "level KV"))


def verdict(answer: Answer, value: float) -> SuiteVerdict:
    asked = question(arms(), PLACED)
    return SuiteVerdict(asked, answer, f"{value}", "x", Ratio(value, value, value, 3))


def test_an_answer_holds_whatever_overlap_hides() -> None:
    same = agreed({0.0: verdict("on", 0.8), 0.5: verdict("on", 0.9), 1.0: verdict("on", 0.7)})
    assert same.answer == "on" and present(same.ratio).value == 0.9, "the least gain"
    assert "hides 50 % of what is sent: 0.9; if overlap hides 100 %" in same.why
    other = agreed({0.0: verdict("on", 0.8), 1.0: verdict("off", 1.0)})
    assert other.answer == "undecided" and present(other.ratio).value == 1.0
    alone = verdict("off", 1.1)
    assert agreed({0.0: alone}) is alone


# ---- what was seen ----


@given(st.integers(1, 500), st.integers(0, 9))
def test_what_a_server_sees_is_a_sample(count: int, seed: int) -> None:
    seen, again = FITTED.seen(count, seed), FITTED.seen(count, seed)
    np.testing.assert_array_equal(seen.load, again.load)
    # Every token uses two experts in each of three layers.
    tokens = FITTED.counts.sum(axis=(1, 2)) / 6
    assert count * tokens.min() <= seen.load[0].sum() / 2 <= count * tokens.max()
    if seen.windows is None:
        assert count == 1
    else:
        assert len(seen.windows) == min(count, 128)
        np.testing.assert_allclose(seen.windows.sum(axis=0), seen.load)


def test_a_large_sample_is_like_all_and_two_small_ones_differ() -> None:
    def share(load: np.ndarray) -> np.ndarray:
        return load / load.sum(axis=1, keepdims=True)

    whole = share(FITTED.counts.sum(axis=0))
    np.testing.assert_allclose(share(FITTED.seen(200_000, 0).load), whole, atol=2e-3)
    few = [share(FITTED.seen(20, seed).load) for seed in (0, 1)]
    assert np.abs(few[0] - few[1]).max() > 0.01
    with pytest.raises(ValueError, match="no request was seen"):
        FITTED.seen(0, 0)


# ---- what moving takes ----


def test_eplb_writes_what_its_next_map_has_otherwise() -> None:
    found = layouts(moving=STAYS)
    lay = Lay("eplb", 4, 1000, 40, True)
    one, two = (found.placement(lay, sample).physical_to_logical.tolist() for sample in (0, 1))
    pairs = [copies(a, b, TOPOLOGY) for a, b in zip(one, two, strict=True)]
    expected = sum(each.sent for each in pairs), sum(each.written for each in pairs)
    assert found.copied(lay) == expected and expected[0] > 0
    assert found.moving_s(lay) == pytest.approx(expected[0] * 1e6 / 1e9)
    aging = present(found.of(lay).aging)
    assert aging.fresh == 1.0 and aging.step_s == pytest.approx(found.moving_s(lay) / 1000)
    assert found.copied(lay._replace(every=None)) == (0, 0)


def test_traffic_that_stays_moves_nothing_that_is_asked_whether_it_pays() -> None:
    ours = Lay("joint", 4, 1000, 40)
    assert layouts(moving=STAYS).copied(ours) == (0, 0)
    drifting = layouts(moving=RelocationCost(2000, 1e9))
    sent, written = drifting.copied(ours)
    assert 0 < sent <= written
    assert drifting.moving_s(ours) >= sent * 1e6 / 1e9 + ORDER_S
    assert layouts(moving=STAYS, expert_bytes=None).moving_s(Lay("eplb", 4, 9, 9, True)) == 0
    assert STAYS.fresh(None) == STAYS.fresh(5) == 1


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_more_is_hidden_the_less_is_left(one: float, other: float) -> None:
    sent = np.ones((3, 4, 3)) * 1e3
    less, more = sorted((one, other))
    links = present(LINKED.links)
    seconds = [
        present(Overlapped(LINKED, share).links).seconds(sent, sent) for share in (less, more)
    ]
    assert (seconds[1] <= seconds[0]).all()
    np.testing.assert_allclose(seconds[0], (1 - less) * links.seconds(sent, sent), atol=1e-12)


def test_nothing_can_be_hidden_of_what_nobody_knows() -> None:
    for cost, share in ((UNLINKED, 0.5), (LINKED, 1.5)):
        with pytest.raises(ValueError, match="cannot be hidden"):
            Overlapped(cost, share)


def test_what_experts_compute_is_not_sent() -> None:
    links, lies = present(LINKED.links), layouts().of(Lay())
    working = links.model_copy(update={"work": Work(least=0.01)})
    told = dict.fromkeys(("kv_mean", "kv_max", "output_tokens_s"), 400.0) | {"tpot_mean": 0.02}

    def laid(links: Links) -> LaidStep:
        cost = LINKED.model_copy(update={"links": links})
        asked = [Request(0, 0.0, 100, 10)]
        return Arithmetic(cost, candidate(document()), asked, [told], None).laid(lies)

    plain, more = laid(links), laid(working)
    assert 0 < plain.sent_s < plain.step_s and plain.uneven > 1
    assert more.sent_s == pytest.approx(plain.sent_s)
    assert more.step_s == pytest.approx(plain.step_s + 3 * 0.01)


# ---- in the simulator ----


def asked(cost: Linear = LINKED, **changes: Any) -> SystemsPlanned:
    known = layouts(**{"moving": STAYS} | changes)
    task = Task(
        document(args={"moe-a2a-backend": "deepep", "ep-num-redundant-experts": 8}),
        Given(),
        cost,
        lambda seed: generate(azure_like(30, 2), seed),
        seeds=3,
        experts=known.experts,
        in_flight=48,
        layouts=known,
    )
    return answer(task, 0.0, subjects=SUBJECTS)


@pytest.mark.slow
def test_both_are_answered_with_figures_and_reasons() -> None:
    found = {each.system: each for each in asked().answers}
    assert set(found) == set(SUBJECTS)
    moved, placed = found[MOVED], found[PLACED]
    assert present(moved.verdict.ratio).pairs == present(placed.verdict.ratio).pairs == 3
    assert "EPLB sends" in moved.because and "toolkit relocate sends 0.0 GB" in moved.because
    assert "the busiest of 4 GPUs" in placed.because and "of a step of" in placed.because
    assert "if overlap hides 100 % of what is sent" in placed.verdict.why
    # Sending is nearly all that a step takes here: hidden, no placement has anything to gain.
    assert placed.verdict.answer != "on"


@pytest.mark.slow
def test_slow_links_are_a_matter_of_who_sends() -> None:
    """EPLB that sends a lot at each interval is the worst alternative, then; experts that stay are
    better."""
    slow = {each.system: each for each in asked(moving=RelocationCost(None, 1e6)).answers}
    assert not slow[MOVED].verdict.against.startswith("EPLB")
    drifting = asked(moving=RelocationCost(500, 1e15), expert_bytes=1.0)
    against = {each.system: each.verdict.against for each in drifting.answers}
    assert against[MOVED].startswith("EPLB"), "what stays lies like linear in the end"


@pytest.mark.slow
def test_without_a_rate_relocation_is_left_out() -> None:
    left = dict(asked(moving=None).left_out)
    assert "--move-gb-s" in left[MOVED] and PLACED not in left


@pytest.mark.slow
def test_the_command_asks_for_what_it_hangs_on(tmp_path: Path) -> None:
    file, cost, out = (tmp_path / name for name in ("wide.yaml", "cost.yaml", "said.json"))
    file.write_text(json.dumps(document(kv_tokens=60_000)))
    cost.write_text(json.dumps(LINKED.model_dump(exclude={"machine"})))
    words = ["plan", str(file), "--cost", str(cost), "--experts", "embedded", "--seeds", "3"]
    words += ["--rate", "10", "--seconds", "1", "--concurrency", "8", "--json", str(out)]
    words += ["--systems", "--placement", "search"]
    done = CliRunner().invoke(app, [*words, "--expert-drift", "100"])
    assert done.exit_code and "say --move-gb-s" in done.output
    done = CliRunner().invoke(app, [*words, "--expert-drift", "100", "--move-gb-s", "50"])
    assert done.exit_code == 0, done.output
    said = json.loads(out.read_text())
    assert set(SUBJECTS) <= {each["system"] for each in said["answers"]}
    assert "(50 GB/s)" in " ".join(done.output.split())
