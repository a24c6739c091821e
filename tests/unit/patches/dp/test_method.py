"""`--load-balance-method` with our names: what SGLang gets to see, and what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patches.dp.method import check_server, take_method
from tests.unit.launch.stand_ins import tiny_model
from toolkit.contract.variables import DP_POLICY_VARIABLE
from toolkit.launch.checks.locality import locality
from toolkit.launch.errors import LaunchError
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.policies.dp_method import SGLANGS, check_method
from toolkit.settings.load import load_deployment

FLAG = "--load-balance-method"


@pytest.mark.parametrize("name", ["br0", "brh@survival", "gimbal", "gimbal@0.8:0.2:500",
                                  "shortest_queue", "least_tokens", "prefix_affinity"])  # fmt: skip
def test_ours_become_total_tokens(name: str) -> None:
    every_step = ["--load-snapshot-publish-interval", "1"]
    assert take_method(["--dp", "2", FLAG, name, "--port", "1"]) == (
        ["--dp", "2", FLAG, "total_tokens", "--port", "1", *every_step],
        name,
    )
    assert take_method([f"{FLAG}={name}"]) == ([f"{FLAG}=total_tokens", *every_step], name)
    # What somebody has set stays.
    own = ["--load-snapshot-publish-interval=3", FLAG, name]
    assert take_method(own) == ([*own[:2], "total_tokens"], name)


@pytest.mark.parametrize("name", SGLANGS)
def test_sglangs_own_are_left_alone(name: str) -> None:
    assert take_method([FLAG, name]) == ([FLAG, name], None)
    assert take_method([f"{FLAG}={name}"]) == ([f"{FLAG}={name}"], None)


def test_without_the_flag_nothing_changes() -> None:
    assert take_method(["--dp", "2"]) == (["--dp", "2"], None)
    assert take_method([FLAG]) == ([FLAG], None)  # SGLang says that the value is missing
    # As with argparse, the last one counts.
    assert take_method([FLAG, "br0", FLAG, "round_robin"])[1] is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("br1", ["unknown policy 'br1'", "br0", "SGLang's own: auto, round_robin"]),
        ("gimbal@2", ["theta_kv = 2", "(0, 1]"]),
        ("br0@x", ["s_greedy"]),
        ("brh@oracles", ["unknown predictor", "survival"]),
        ("eldr@0.1", ["needs a profile", "router.profile", "TOOLKIT_DP_PROFILE"]),
        ("label_oracle", ["labels", "the toolkit's router"]),
    ],
)
def test_a_name_that_is_not_known_or_cannot_be_used(name: str, said: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        take_method([FLAG, name], profile=False)
    assert [text for text in said if text not in str(error.value)] == []


def test_a_policy_of_the_other_side() -> None:
    check_method("br0", "decode")
    with pytest.raises(ValueError, match="unknown prefill policy 'br0'"):
        check_method("br0", "prefill")


def server(**changed: Any) -> SimpleNamespace:
    known: dict[str, Any] = {
        "load_balance_method": "total_tokens",
        "disaggregation_mode": "null",
        "tokenizer_worker_num": 1,
    }
    return SimpleNamespace(**known | changed)


def test_a_server_that_can_use_it() -> None:
    check_server(server(), "brh", 2)
    check_server(server(disaggregation_mode="prefill"), "gimbal", 2)
    check_server(server(disaggregation_mode="decode", tokenizer_worker_num=2), "br0", 2)


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("br0", {"ranks": 1}, "this worker has one: add --dp 2"),
        ("br0", {"load_balance_method": "round_robin"}, f"{DP_POLICY_VARIABLE}=br0 needs"),
        ("br0", {"disaggregation_mode": "prefill"}, "unknown prefill policy"),
        ("brh", {"tokenizer_worker_num": 2}, "use br0, or --tokenizer-worker-num 1"),
        ("eldr", {}, "which only decode workers are sent"),
        ("composed", {}, "which only decode workers are sent"),
    ],
)
def test_a_server_that_cannot(name: str, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as error:
        check_server(server(**changed), name, changed.get("ranks", 2))
    assert said in str(error.value)


def planned(tmp_path: Path, text: str) -> Plan:
    file = tmp_path / "d.yaml"
    file.write_text(text)
    return resolve(load_deployment(file))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tiny_model(tmp_path / "model")


def method_of(plan: Plan, role: str) -> list[str]:
    """What follows the flag, for each worker of the role."""
    argvs = [worker.argv for worker in plan.workers if worker.role == role]
    return [argv[argv.index(FLAG) + 1] if FLAG in argv else "" for argv in argvs]


def test_a_role_s_policy_reaches_its_workers(tmp_path: Path, model: Path) -> None:
    plan = planned(
        tmp_path,
        f"name: a\nmodel: {model}\nrouter: sglang\n"
        "prefill: {dp: 2, dp_policy: 'gimbal@0.8:0.1:500'}\n"
        "decode: {replicas: 2, tp: 2, dp: 2, dp_attention: true, dp_policy: brh}\n",
    )
    assert method_of(plan, "prefill") == ["gimbal@0.8:0.1:500"]
    assert method_of(plan, "decode") == ["brh", "brh"]
    plain = "mode: plain\nrouter: none\nworker: {dp: 2, dp_policy: total_requests}\n"
    plan = planned(tmp_path, f"name: a\nmodel: {model}\n{plain}")
    assert method_of(plan, "plain") == ["total_requests"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("router: none\ndecode: {dp_policy: br0}", "decode: dp_policy: br0 chooses among DP ranks"),
        ("decode: {dp: 2, dp_policy: br0}", "would never be asked, as router: toolkit"),
        ("router: none\nprefill: {dp: 2, dp_policy: br0}", "unknown prefill policy 'br0'"),
        ("router: none\ndecode: {dp: 2, dp_policy: gimbal@7}", "theta_kv = 7"),
        ("router: none\ndecode: {dp: 2, dp_policy: eldr}", "needs a profile"),
        ("router: none\ndecode: {dp: 2, dp_policy: label_oracle}", "use the toolkit's router"),
        (
            "router: none\ndecode: {dp: 2, args: {load_balance_method: br0}}",
            "set decode.dp_policy instead",
        ),
        (
            "router: none\ndecode: {dp: 2, dp_policy: br0, args: {load-balance-method: auto}}",
            "keep one of the two",
        ),
    ],
)
def test_a_policy_that_would_not_work_is_refused(
    tmp_path: Path, model: Path, text: str, said: str
) -> None:
    with pytest.raises(LaunchError) as error:
        planned(tmp_path, f"name: a\nmodel: {model}\n{text}\n")
    assert said in str(error.value)


def test_sglangs_methods_may_be_given_as_flags(tmp_path: Path, model: Path) -> None:
    text = f"name: a\nmodel: {model}\ndecode: {{dp: 2, args: {{load-balance-method: auto}}}}\n"
    assert method_of(planned(tmp_path, text), "decode") == ["auto"]


EXPERTS_DECIDE = "name: a\nrouter: {kind: sglang, profile: embedded}\ndecode: "


def test_eldr_inside_decode_gets_signatures_before_it_must_choose(tmp_path: Path) -> None:
    plan = planned(tmp_path, EXPERTS_DECIDE + "{dp: 2, dp_policy: eldr@0.2}\n")
    prefill = next(worker for worker in plan.workers if worker.role == "prefill")
    decode = next(worker for worker in plan.workers if worker.role == "decode")
    assert prefill.argv[prefill.argv.index("--optimistic-prefill-attempts") + 1] == "1000"
    assert prefill.env["TOOLKIT_SIGNATURE_LAYERS"]
    assert Path(decode.env["TOOLKIT_DP_PROFILE"]).is_dir()
    assert "TOOLKIT_DP_PROFILE" not in prefill.env
    # Nobody is told that the signatures are of no use.
    assert [str(problem) for problem in locality(plan)] == []


def test_ranks_that_share_their_experts_are_told_that_these_decide_nothing(tmp_path: Path) -> None:
    """In each server by itself, however many there are."""
    role = "{replicas: 2, tp: 2, dp: 2, dp_attention: true, dp_policy: composed}"
    (note,) = locality(planned(tmp_path, f"{EXPERTS_DECIDE}{role}\n"))
    assert not note.fatal and note.where == "decode.dp_policy"
    assert "locality decides nothing" in note.what
