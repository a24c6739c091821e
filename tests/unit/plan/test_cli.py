"""The command: what it writes, prints and refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.present import present
from tests.unit.plan.tasks import deployment_file
from toolkit.cli.main import app
from toolkit.launch.resolve import resolve
from toolkit.settings.load import load_deployment
from toolkit.simulate.of_deployment import fleet_of

QUICK = ("--rate", "20", "--seconds", "6", "--seeds", "1", "--budget", "20", "--scale", "1")


def command(*given: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plan", *given])
    return done.exit_code, " ".join(done.output.split())


def planned(folder: Path, *given: str, extra: str = "") -> tuple[int, str]:
    file = deployment_file(folder, extra)
    return command(str(file), *QUICK, "--cost", str(folder / "cost.yaml"), *given)


@pytest.mark.slow
def test_it_writes_a_file_that_launches_and_all_figures(tmp_path: Path) -> None:
    out, figures = tmp_path / "plan.yaml", tmp_path / "plan.json"
    code, printed = planned(tmp_path, "--out", str(out), "--json", str(figures))
    assert code == 0, printed
    assert "plan / baseline" in printed and f"written: {out}" in printed
    made = load_deployment(out)
    plan = resolve(made)
    found = json.loads(figures.read_text())
    assert found["met"] and found["simulations"] <= 20
    assert fleet_of(made).model_dump(mode="json") == found["plan"]["fleet"]
    assert [w.role for w in plan.workers].count("prefill") == found["plan"]["split"][0]
    assert present(present(plan.router).config)["decode_policy"] == found["plan"]["decode_policy"]
    assert made.router.max_queue == 77 and made.name == "four", "what is not searched stays"
    assert out.read_text().startswith(f"# From {tmp_path / 'four.yaml'} (whose comments")


@pytest.mark.slow
def test_limits_that_cannot_be_met_write_nothing_and_exit_3(tmp_path: Path) -> None:
    out = tmp_path / "plan.yaml"
    code, printed = planned(tmp_path, "--slo-tpot-ms", "5", "--out", str(out))
    assert code == 3 and not out.exists(), printed
    assert "no setting of these 4 workers meets TPOT <= 5 ms for 90.0 % of requests" in printed
    assert "--anyway writes the best" in printed
    code, printed = planned(tmp_path, "--slo-tpot-ms", "5", "--out", str(out), "--anyway")
    assert code == 3 and load_deployment(out).name == "four"


@pytest.mark.slow
def test_costs_may_say_what_workers_of_one_machine_lose(tmp_path: Path) -> None:
    file, cost, figures = deployment_file(tmp_path, ""), tmp_path / "cost.yaml", tmp_path / "f.json"
    alone = cost.read_text()
    tpots = []
    for text in (alone, f"{alone}\nmachine: {{decode_beside_prefill: 0.2}}\n"):
        cost.write_text(text)
        code, printed = command(str(file), *QUICK, "--cost", str(cost), "--json", str(figures))
        assert code == 0, printed
        baseline = json.loads(figures.read_text())["baseline"]
        tpots.append(baseline["predicted"]["tpot_mean"]["tpot_mean"])
    assert baseline["fleet"]["machine"]["decode_beside_prefill"] == 0.2
    assert tpots[1] > 1.05 * tpots[0]


@pytest.mark.slow
def test_a_closed_loop_with_experts_on_gpus(tmp_path: Path) -> None:
    figures = tmp_path / "f.json"
    given = ("--concurrency", "9", "--experts", "embedded", "--json", str(figures))
    code, printed = planned(tmp_path, *given)
    assert code == 0 and "predicted for 9 requests in flight" in printed, printed
    file = deployment_file(tmp_path)
    file.write_text(file.read_text().replace("max_running: 16", "max_running: 16, tp: 2, ep: 2"))
    cost = tmp_path / "cost.yaml"
    cost.write_text(cost.read_text().replace("1.0e-6}", "1.0e-6, per_distinct: 2.0e-4}", 1))
    rest = (*QUICK, "--cost", str(cost), *given)
    found = []
    for placed in ((), ("--placement", "linear")):
        code, printed = command(str(file), *rest, *placed)
        assert code == 0, printed
        found.append(json.loads(figures.read_text())["baseline"]["figures"][0]["tpot_mean"])
    assert 0.4 < found[1] / found[0] < 0.95, "each GPU loads its own half"


@pytest.mark.slow
def test_workers_can_be_another_number(tmp_path: Path) -> None:
    out = tmp_path / "plan.yaml"
    code, printed = planned(tmp_path, "--workers", "6", "--out", str(out))
    made = load_deployment(out)
    assert code == 0 and made.prefill.replicas + made.decode.replicas == 6, printed


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--slo-ttft-ms", "0"], "--slo-ttft-ms must be above 0, not 0"),
        (["--slo-tpot-ms", "-3"], "--slo-tpot-ms must be above 0, not -3"),
        (["--attainment", "0"], "--attainment must lie in (0, 1]"),
        (["--attainment", "1.5"], "--attainment must lie in (0, 1]"),
        (["--placement", "linear"], "say whose with --experts"),
        (["--workers", "1"], "1 worker: a prefill and a decode worker are two at least"),
        (["--budget", "5"], "--budget 5 is too few with 1 seeds: 14"),
        (["--trace", "/nowhere.csv", "--rate", "1"], "cannot read the trace"),
        (["--cost", "h100"], "no cost model 'h100'"),
        (["--out", "/nowhere/x.yaml"], "is no place for a file"),
        (["--rate", "0.001"], "no request arrives"),
    ],
)
def test_it_refuses_in_one_sentence(tmp_path: Path, given: Any, says: str) -> None:
    code, printed = planned(tmp_path, *given)
    assert code == 1 and says in printed and "Traceback" not in printed


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    file = deployment_file(tmp_path)
    before = file.read_text()
    code, printed = planned(tmp_path, "--out", str(file))
    assert code == 1 and "--force" in printed and file.read_text() == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\ndecode: {max_running: 8}\n", "decode.kv_tokens is not in the deployment file"),
        ("name: x\nmode: plain\n", "mode: plain is not planned"),
        (
            "name: x\ndecode: {tp: 4, dp: 3, dp_attention: true}\n",
            "tp (4) must be a multiple of dp (3)",
        ),
        (
            "name: x\nmodel: /models/none\ndecode: {kv_tokens: 9000, max_running: 8}\n",
            "the embedded model's profile says nothing of /models/none: give --cost",
        ),
    ],
)
def test_files_that_nothing_can_be_planned_for(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    code, printed = command(str(path), *QUICK)
    assert code == 1 and says in printed and "Traceback" not in printed


def test_a_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    config = {"num_hidden_layers": 9, "decoder_sparse_step": 1, "num_experts": 77,
              "num_experts_per_tok": 3}  # fmt: skip
    (other / "config.json").write_text(json.dumps(config))
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nmodel: other\ndecode: {kv_tokens: 9000, max_running: 8}\n")
    code, printed = command(str(path), *QUICK)
    assert code == 1 and "the profile was measured on" in printed and "9" in printed


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    code, printed = planned(tmp_path, "--trace", str(tmp_path / "empty.csv"))
    assert code == 1 and "no request" in printed
