"""Arms on equal requests; fleets of deployment files; cost files; the command."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.simulate.fleets import COST, fleet, requests
from toolkit.cli.main import app
from toolkit.resources import profiles_dir, recipes_dir
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load_deployment
from toolkit.simulate import costs
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.of_deployment import fleet_of
from toolkit.simulate.of_draft import DraftCosts
from toolkit.simulate.session import SimulationSetting, run, with_policies
from toolkit.simulate.simulation import Simulation, Window

EMBEDDED = profiles_dir() / "embedded"
COSTS = """decode:
  base: 0.01
  per_kv_token: 1.0e-7
prefill:
  base: 0.01
  per_token: 3.0e-5
"""


def test_arms_play_the_same_requests_and_are_compared_by_seed() -> None:
    made = fleet({"dp": 2, "dp_attention": True, "slots": 8, "kv_tokens": 9000})
    setting = SimulationSetting(
        made, COST, lambda seed: requests(120, seed=seed), ["level", "round_robin"], seeds=3
    )
    outcome = run(setting)
    assert [len(each) for each in outcome.figures] == [3, 3]
    assert all(a["requests"] == 120 for each in outcome.figures for a in each)
    spread = outcome.ratio(0, 1, "kv_spread")
    assert spread is not None and spread.pairs == 3 and spread.value < 1
    assert outcome.ratio(0, 1, "retractions") is None


def test_a_window_looks_at_its_own_requests_only() -> None:
    setting = SimulationSetting(
        fleet(), COST, lambda seed: requests(200), ["level"], seeds=1, window=Window(2.0, 5.0)
    )
    inside = sum(2.0 <= r.arrived <= 5.0 for r in requests(200))
    assert run(setting).figures[0][0]["requests"] == inside
    nobody = SimulationSetting(
        fleet(), COST, lambda seed: requests(20), ["level"], seeds=1, window=Window(1e6)
    )
    with pytest.raises(SimulateError, match="no request arrived"):
        run(nobody)


def test_requests_with_the_same_experts_go_together() -> None:
    """ELDR's effect: fewer distinct experts a step than round robin, by the profile alone."""
    made = fleet({"replicas": 4, "slots": 16, "kv_tokens": 20_000})
    setting = SimulationSetting(
        made,
        COST,
        lambda seed: requests(400, 30.0, seed),
        ["eldr", "round_robin"],
        seeds=1,
        experts=SimulatedExperts.of_profile(EMBEDDED),
    )
    outcome = run(setting)
    each = [
        sum(g.distinct_steps for g in groups) / sum(g.steps for g in groups)
        for groups in (recorder.groups for recorder in outcome.recorders)
    ]
    assert each[0] < 0.85 * each[1]


def test_published_rules_are_simulated() -> None:
    arms = ["eldr@paper", "eldr@artifact", "br0@paper", "gimbal@paper+brh@paper:survival"]
    made = fleet({"replicas": 4, "slots": 16, "kv_tokens": 20_000})
    experts = SimulatedExperts.of_profile(EMBEDDED)
    outcome = run(
        SimulationSetting(
            made, COST, lambda s: requests(60, 30.0, s), arms, seeds=1, experts=experts
        )
    )
    assert [each[0]["requests"] for each in outcome.figures] == [60] * 4


def test_locality_without_a_profile_is_refused() -> None:
    setting = SimulationSetting(fleet(), COST, lambda seed: requests(5), ["eldr"], seeds=1)
    with pytest.raises(ValueError, match="eldr needs a profile"):
        run(setting)


@pytest.mark.parametrize(
    ("arm", "prefill", "decode"),
    [
        ("br0@0", "round_robin", "br0@0"),
        ("gimbal+level", "gimbal", "level"),
        ("composed@filter+level@0+user", "round_robin", "composed@filter+level@0+user"),
        ("gimbal+composed@filter+user", "gimbal", "composed@filter+user"),
        ("gimbal@paper:0.8+eldr@paper:0.05", "gimbal@paper:0.8", "eldr@paper:0.05"),
    ],
)
def test_an_arm_names_one_policy_or_both(arm: str, prefill: str, decode: str) -> None:
    router = with_policies(fleet(), arm).router
    assert (router.prefill_policy, router.decode_policy) == (prefill, decode)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown decode policy 'levle'"):
        with_policies(fleet(), "levle")


def test_a_deployment_file_is_a_fleet() -> None:
    found = fleet_of(load_deployment(recipes_dir() / "cpu-dp.yaml"))
    assert found.decode_ranks == 2 and found.decode.dp_attention
    assert found.decode.slots == 16 and found.decode.kv_tokens == 16_384
    assert found.decode.loop == "cpu" and found.router.parked_per_prefill == 48
    assert (found.router.routers, found.router.report_s) == (1, 0)
    several = fleet_of(load_deployment(recipes_dir() / "cpu-routers.yaml")).router
    assert several.routers == 2 and several.report_s > 0


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"mode": "plain"}, "worker.kv_tokens .* --kv-tokens"),
        ({"mode": "plain", "worker": {"kv_tokens": 9000}}, "worker.max_running .* --slots"),
        ({"router": "sglang"}, "router: sglang is not simulated"),
        ({}, "decode.kv_tokens .* --kv-tokens"),
        ({"decode": {"kv_tokens": 9000}}, "decode.max_running .* --slots"),
    ],
)
def test_what_cannot_be_simulated_says_what_to_do(said: Any, match: str) -> None:
    with pytest.raises(SimulateError, match=match):
        fleet_of(Deployment.model_validate({"name": "x", **said}))


def test_the_order_of_waiting_prompts_is_the_files() -> None:
    sizes = {"kv_tokens": 9000, "max_running": 8}
    given = {"name": "x", "prefill": {"waiting": {"order": "sjf", "age_s": 2}}, "decode": sizes}
    made = fleet_of(Deployment.model_validate(given))
    assert made.prefill.waiting_age_s == 2
    assert Simulation(made, COST, iter(())).prefills[0].prompts.shortest is not None
    assert (
        fleet_of(Deployment.model_validate(given | {"prefill": {}})).prefill.waiting_age_s is None
    )


@pytest.mark.parametrize(
    ("backend", "early"), [("auto", True), ("mooncake", True), ("nixl", False), ("mori", False)]
)
def test_kv_leaves_early_with_mooncake(backend: str, early: bool) -> None:
    given = {"name": "x", "decode": {"kv_tokens": 99, "max_running": 4}}
    made = Deployment.model_validate(given | {"transfer": {"backend": backend}})
    assert fleet_of(made).prefill.early_send is early


def test_a_model_with_a_state_beside_its_kv_sends_between_passes() -> None:
    recipe = load_deployment(recipes_dir() / "qwen3-next-80b-8gpu.yaml")
    found = fleet_of(recipe, 1000, 8, draft=DraftCosts(2.0)).prefill
    assert not found.early_send


def test_what_the_file_leaves_to_the_router_is_as_the_router_has_it() -> None:
    from toolkit.launch.checks.waiting import PARKED
    from toolkit.settings.router.config import RouterConfig

    def router(prefill: Any) -> Any:
        decode = {"kv_tokens": 9000, "max_running": 8}
        given = {"name": "x", "prefill": prefill, "decode": decode}
        return fleet_of(Deployment.model_validate(given)).router

    found = router({})
    for key in ("prefill_policy", "decode_policy", "dispatch", "parked_per_prefill"):
        assert getattr(found, key) == RouterConfig.model_fields[key].default
    assert router({"waiting": "sjf"}).parked_per_prefill == PARKED


def test_ranks_of_dp_attention_share_the_chunk_of_their_server() -> None:
    given: dict[str, Any] = {
        "name": "x",
        "prefill": {"tp": 4, "dp": 4, "dp_attention": True, "args": {"chunked-prefill-size": 4000}},
        "decode": {"kv_tokens": 9000, "max_running": 8},
    }
    found = fleet_of(Deployment.model_validate(given)).prefill
    assert (found.replicas, found.chunk) == (4, 1000)
    given["prefill"] |= {"tp": 1, "dp_attention": False}
    assert fleet_of(Deployment.model_validate(given)).prefill.chunk == 4000


def test_sizes_that_the_file_leaves_open_can_be_given() -> None:
    deployment = Deployment.model_validate(
        {"name": "x", "device": "cuda", "decode": {"args": {"disable-overlap-schedule": True}}}
    )
    found = fleet_of(deployment, kv_tokens=5000, slots=7).decode
    assert (found.kv_tokens, found.slots, found.loop) == (5000, 7, "plain")


def test_a_profile_says_what_steps_take() -> None:
    import numpy as np

    cost = costs.load("embedded")
    few, many = (cost.decode_s(np.array([8]), np.array([1000]), d) for d in (50.0, 200.0))
    assert 0 < few < many
    assert cost.prefill_s([(1000, 0)]) > cost.prefill_s([(100, 0)]) > 0
    assert cost.transfer_s(1000) > cost.transfer_s(0) > 0


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("decode:\n  base: 0.01\n", "prefill: Field required"),
        (COSTS + "transfers:\n  base: 1\n", r"yaml:7: transfers: unknown key: did you mean 'tran"),
        (COSTS.replace("0.01", "-1"), r"yaml:2: decode.base: Input should be greater"),
        (COSTS.replace("per_token", "per_tokn"), r"prefill.per_tokn: unknown key: did you mean"),
    ],
)
def test_a_wrong_cost_file_says_where(tmp_path: Path, text: Any, match: str) -> None:
    path = tmp_path / "cost.yaml"
    path.write_text(text)
    with pytest.raises(SimulateError, match=match):
        costs.load(str(path))


def test_no_cost_model_at_all_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(SimulateError, match="no cost model 'h100'"):
        costs.load("h100")


def command(*given: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["simulate", *given])
    return done.exit_code, done.output


def test_the_command_compares_and_writes_all_figures(tmp_path: Path) -> None:
    (tmp_path / "cost.yaml").write_text(COSTS)
    output = tmp_path / "out.json"
    code, printed = command(
        "cpu-dp", "--rate", "3", "--seconds", "20", "--compare", "level,round_robin",
        "--seeds", "2", "--cost", str(tmp_path / "cost.yaml"), "--output", str(output),
    )  # fmt: skip
    assert code == 0, printed
    assert "level divided by" in printed and "2 seeds" in printed
    found = json.loads(output.read_text())
    assert set(found) == {"level", "round_robin"} and len(found["level"]) == 2
    assert found["level"][0]["requests"] > 30


def test_the_command_tells_classes_apart(tmp_path: Path) -> None:
    document = yaml.safe_load((recipes_dir() / "cpu-dp.yaml").read_text())
    document["prefill"] |= {"preempt": {"policy": "strict", "slice": 2}}
    document["router"] = {**document.get("router", {}), "classes": {}}
    path, cost = tmp_path / "stops.yaml", tmp_path / "cost.yaml"
    path.write_text(yaml.safe_dump(document))
    cost.write_text(COSTS.replace("3.0e-5", "3.0e-4\n  per_slice: 0.001"))
    output, page = tmp_path / "out.json", tmp_path / "page.html"
    code, printed = command(
        str(path), "--rate", "3", "--seconds", "40", "--compare", "level,round_robin",
        "--seeds", "2", "--cost", str(cost), "--output", str(output), "--report", str(page),
        "--ls-share", "0.3", "--slo-ls-ttft-ms", "500",
    )  # fmt: skip
    assert code == 0, printed
    for title in ("latency-sensitive requests", "best-effort requests", "by class", "slowdown"):
        assert title in printed
    (first, *_) = json.loads(output.read_text())["level"]
    assert first["latency_sensitive.requests"] + first["best_effort.requests"] == first["requests"]
    assert first["latency_sensitive.good_share"] < 1 == first["best_effort.good_share"]
    assert "By class" in page.read_text()
    assert "Best-effort prompts give way (strict), every 2 of 6 layers." in page.read_text()
    code, printed = command(str(path), "--rate", "3", "--ls-share", "2", "--cost", str(cost))
    assert code == 1 and "share from 0 to 1" in printed


def test_the_command_places_experts(tmp_path: Path) -> None:
    """On fewer GPUs that share the experts each of them has more to load."""
    (tmp_path / "cost.yaml").write_text(COSTS.replace("per_kv_token", "per_distinct"))
    text = (recipes_dir() / "cpu-dp.yaml").read_text()
    speeds = []
    for number in (2, 1):
        path = tmp_path / f"ep{number}.yaml"
        document = yaml.safe_load(text)
        document["decode"] |= {"ep": number}
        path.write_text(yaml.safe_dump(document))
        output = tmp_path / f"ep{number}.json"
        code, printed = command(
            str(path), "--rate", "3", "--seconds", "20", "--seeds", "1", "--experts", "embedded",
            "--cost", str(tmp_path / "cost.yaml"), "--output", str(output),
            *(["--placement", "linear"] if number > 1 else []),
        )  # fmt: skip
        assert code == 0, printed
        speeds += [each[0]["tpot_mean"] for each in json.loads(output.read_text()).values()]
    assert speeds[0] < speeds[1]
    code, printed = command(
        str(tmp_path / "ep2.yaml"), "--rate", "3", "--placement", str(tmp_path / "gone.json")
    )
    assert code == 1 and "gone.json: No such file" in printed and "`linear` or a file" in printed


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            [
                "deepseek-v3-multinode",
                "--kv-tokens",
                "9",
                "--slots",
                "9",
                "--rate",
                "1",
                "--accepted",
                "1.85",
                "--placement",
                "linear",
            ],
            "say whose with --experts",
        ),
        (["cpu-dp", "--rate", "1", "--placement", "linear"], "over GPUs: decode.ep is 1"),
        (["cpu-dp"], "say what arrives"),
        (["cpu-speculative", "--rate", "1"], "say it with --accepted"),
        (["cpu-dp", "--rate", "1", "--compare", "nobody"], "unknown decode policy"),
        (["cpu-dp", "--rate", "1", "--scale", "0"], "--scale is one or two factors"),
        (["cpu-dp", "--trace", "/nowhere.csv"], "cannot read the trace"),
        (["nowhere", "--rate", "1"], "nowhere"),
        (["cpu-dp", "--trace", "x.csv", "--speedup", "0"], "speedup must be above 0"),
        (["cpu-dp", "--rate", "0.001", "--seconds", "1"], "no request arrived"),
        (["qwen3-30b-a3b-8gpu", "--rate", "1"], "--kv-tokens"),
    ],
)
def test_the_command_refuses_in_one_sentence(given: Any, says: str) -> None:
    code, printed = command(*given)
    assert code == 1 and says in printed and "Traceback" not in printed


def test_a_traffic_file_is_played_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "traffic.yaml"
    kind = "  - {name: chat, share: 1, prompt: [200, 0.5], answer: [30, 0.5]}\n"
    path.write_text(f"rate: 4\nseconds: 10\nkinds:\n{kind}")
    code, printed = command("cpu-dp", "--traffic", str(path), "--seeds", "1")
    assert code == 0, printed
    path.write_text(f"rate: 4\nseconds: 10\nburts: 2\nkinds:\n{kind}")
    code, printed = command("cpu-dp", "--traffic", str(path))
    assert code == 1 and "traffic.yaml:3: burts: unknown key: did you mean 'burst'" in printed
