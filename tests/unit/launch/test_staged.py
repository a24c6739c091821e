"""`decode: {stages: ...}`: what a user writes, what the router gets, and what is wrong in words."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.launch.stand_ins import tiny_model
from tests.unit.settings.written import load, problems_of
from toolkit.launch import show
from toolkit.launch.checks.staged import staged
from toolkit.launch.resolve import resolve
from toolkit.policies.stages.layout import Layout
from toolkit.settings.router.config import RouterConfig

STAGES = "stages: [{upto: 512, replicas: 2}, {upto: 2048}, {replicas: 1}]"


def problem_of(tmp_path: Path, text: str) -> str:
    (problem,) = problems_of(tmp_path, text)
    return problem


def test_stages_say_how_many_replicas_there_are(tmp_path: Path) -> None:
    decode = load(tmp_path, f"decode: {{{STAGES}}}").decode
    assert decode.replicas == 4
    assert decode.layout == Layout.of([(512, 2), (2048, 1), (None, 1)])
    assert load(tmp_path, "decode: {replicas: 3}").decode.layout is None


def test_servers_with_dp_ranks_are_of_a_stage_with_all_of_them(tmp_path: Path) -> None:
    for more in ("dp: 2", "dp: 2, replicas: 4", "dp: 2, tp: 2, dp_attention: true"):
        decode = load(tmp_path, f"decode: {{{more}, {STAGES}}}").decode
        assert decode.replicas == 4
        assert decode.layout == Layout.of([(512, 4), (2048, 2), (None, 2)])


def test_dp_ranks_may_be_counted_themselves(tmp_path: Path) -> None:
    decode = load(tmp_path, f"decode: {{dp: 2, replicas: 2, {STAGES}}}").decode
    assert decode.layout == Layout.of([(512, 2), (2048, 1), (None, 1)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"decode: {{replicas: 3, {STAGES}}}", "2: decode: stages: have 4 replicas in all, but the "
         "role has 3: make them as many, or leave the role's replicas out"),
        (f"decode: {{replicas: 3, dp: 2, {STAGES}}}", "has 3 (or 6 DP ranks): make"),
        (f"decode: {{replicas: 2, tp: 2, dp: 2, dp_attention: true, {STAGES}}}",
         "of a server with dp_attention take every step together"),
        ("decode:\n  replicas: 1\n  stages: []", "4: decode.stages: a layout needs at least one"),
        ("decode:\n  stages: [{upto: 5}]", "3: decode.stages: the last stage ends at 5"),
        ("decode:\n  stages:\n  - upto: 5\n  - upto: 5\n  - {}", "must rise from stage to stage"),
        ("decode:\n  stages:\n  - upto: 5\n  - upot: 6", "5: unknown key 'decode.stages.1.upot'"),
        ("decode:\n  stages: [{replicas: 0}]", "greater than or equal to 1"),
        ("decode:\n  stages: 4", "valid list"),
        (f"prefill: {{{STAGES}}}", "prefill: stages: are of decode workers"),
        (f"mode: plain\nworker: {{{STAGES}}}", "worker: stages: are of decode workers"),
        (f"decode: {{{STAGES}}}\nrouter: sglang", "only our router knows lengths"),
        (f"decode: {{{STAGES}}}\nrouter: {{dispatch: concurrent}}", "use dispatch: late"),
    ],
)  # fmt: skip
def test_what_cannot_be_says_so(tmp_path: Path, text: str, said: str) -> None:
    assert said in problem_of(tmp_path, text)


def test_another_device_has_the_same_stages(tmp_path: Path) -> None:
    made = load(tmp_path, f"decode: {{{STAGES}}}")
    assert made.on_device("cuda").decode.layout == made.decode.layout


def test_the_router_gets_them_in_ranks_and_a_plan_shows_them(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    text = f"model: {model}\ndecode: {{dp: 2, {STAGES}}}"
    plan = resolve(load(tmp_path, text))
    assert plan.router is not None and plan.router.config is not None
    config = RouterConfig.model_validate(plan.router.config)
    assert config.layout == Layout.of([(512, 4), (2048, 2), (None, 2)])
    ranges = [worker.ranges for worker in plan.workers if worker.role == "decode"]
    assert ranges == [("1-512",), ("1-512",), ("513-2048",), ("2049-",)]
    console = Console(file=io.StringIO(), width=200)
    console.print(show.summary(plan))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "lengths" in shown and "513-2048" in shown
    assert plan.to_json()["workers"][-1]["ranges"] == ("2049-",)


def test_a_server_whose_ranks_are_of_two_stages_shows_both(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    text = f"model: {model}\ndecode: {{dp: 2, replicas: 1, stages: [{{upto: 9}}, {{}}]}}"
    plan = resolve(load(tmp_path, text))
    assert plan.workers[-1].ranges == ("1-9", "10-")


def test_moves_are_on_with_stages_and_with_the_profiles_fit(tmp_path: Path) -> None:
    from tests.unit.profile import sample
    from toolkit.profile_folder.store import write

    profile, arrays = sample.build(sample.Size(requests=60))
    write(tmp_path / "profile", profile, arrays, "")
    assert profile.latency is not None and profile.latency.qoe is not None
    own = profile.latency.qoe.coefficients
    model = tiny_model(tmp_path / "model")

    def config(text: str) -> RouterConfig:
        plan = resolve(load(tmp_path, f"model: {model}\n{text}"))
        assert plan.router is not None and plan.router.config is not None
        return RouterConfig.model_validate(plan.router.config)

    staged = config("decode: {stages: [{upto: 9}, {}]}")
    assert staged.rebalancing is not None and staged.rebalancing.qoe is None
    with_fit = (
        "decode: {stages: [{upto: 9}, {}]}\nrouter: {profile: profile, rebalance: {over: 0.5}}"
    )
    moves = config(with_fit).rebalancing
    assert moves is not None and moves.qoe == own and moves.over == 0.5
    given = config("router: {profile: profile, rebalance: {qoe: [1, 0, 0, 0, 0]}}").rebalancing
    assert given is not None and given.qoe == (1, 0, 0, 0, 0)
    assert config("router: {rebalance: true}").rebalancing is not None
    assert (
        config("decode: {stages: [{upto: 9}, {}]}\nrouter: {rebalance: false}").rebalancing is None
    )
    assert config("decode: {replicas: 2}").rebalancing is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("router: {rebalance: {refine_s: 5, qoe: [1, 0, 0, 0, 0]}}", "no stages to refine"),
        ("decode: {stages: [{upto: 9}, {}]}\nrouter: {rebalance: {refine_s: 5}}",
         "found by a QoE fit, and there is none"),
    ],
)  # fmt: skip
def test_what_refinement_needs_is_asked_for(tmp_path: Path, text: str, said: str) -> None:
    model = tiny_model(tmp_path / "model")
    problems = staged(resolve(load(tmp_path, f"model: {model}\n{text}")))
    assert any(said in str(problem) and problem.fatal for problem in problems)


def test_what_mixed_lengths_cost_says_nothing_without_a_fit(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    text = f"model: {model}\ndecode: {{stages: [{{upto: 9}}, {{}}]}}\nrouter: {{rebalance: "
    (problem,) = staged(resolve(load(tmp_path, text + "{mixed: 1.0e-5}}")))
    assert not problem.fatal and "stages stand still" in str(problem)
    assert not staged(resolve(load(tmp_path, text + "{mixed: 1.0e-5, qoe: [1, 0, 0, 0, 0]}}")))


def test_a_profile_with_a_fit_of_no_use_is_no_obstacle(tmp_path: Path) -> None:
    """The embedded one's has a term below zero."""
    text = "decode: {stages: [{upto: 9}, {}]}\nrouter: {profile: embedded}"
    plan = resolve(load(tmp_path, text))
    assert plan.router is not None and plan.router.config is not None
    assert RouterConfig.model_validate(plan.router.config).rebalancing is not None
    (problem,) = staged(plan)
    assert not problem.fatal and "weighed by KV tokens alone: QoE: D_" in str(problem)
    more = text.replace("embedded", "embedded, rebalance: {refine_s: 9}")
    (problem,) = staged(resolve(load(tmp_path, more)))
    assert problem.fatal and "there is none: QoE: D_" in str(problem)


def test_without_stages_nothing_is_said_of_them(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    plan = resolve(load(tmp_path, f"model: {model}"))
    assert plan.router is not None and "stages" not in (plan.router.config or {})
    console = Console(file=io.StringIO(), width=200)
    console.print(show.summary(plan))
    assert "lengths" not in console.file.getvalue()  # type: ignore[attr-defined]
