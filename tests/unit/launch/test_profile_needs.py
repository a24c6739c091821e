"""Expert locality in a plan: what a profile makes the workers and the router do, and its checks."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from patches.experts import signature
from tests.present import present
from tests.unit.launch.stand_ins import tiny_model
from toolkit.cli.profile import to_measure
from toolkit.contract.capturing import BYPASS, SPLIT, STORES
from toolkit.contract.variables import LAYERS_VARIABLE
from toolkit.launch import show
from toolkit.launch.checks import possible
from toolkit.launch.checks.locality import locality
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.profile_folder import store
from toolkit.resources import profiles_dir, recipes_dir
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load_deployment
from toolkit.settings.router.config import RouterConfig

EMBEDDED = profiles_dir() / "embedded"
MASK = sorted(store.read(EMBEDDED)[0].rho.mask)
"""What a measurement found: another one may find others."""
SHOWN = ",".join(map(str, MASK))


def plan(**fields: Any) -> Plan:
    """A plan of the embedded model with its profile and `eldr`, changed by `fields`."""
    router = {"profile": "embedded", "decode_policy": "eldr"} | fields.pop("router", {})
    router = {key: value for key, value in router.items() if value is not None}
    return resolve(Deployment.model_validate({"name": "t", "router": router} | fields))


def fatal(found: list[Problem]) -> list[str]:
    return [str(p) for p in found if p.fatal]


def test_the_prefill_workers_record_the_layers_of_the_mask() -> None:
    made = plan(prefill={"replicas": 2}, decode={"replicas": 4})
    for worker in made.workers:
        prefill = worker.role == "prefill"
        assert worker.env.get(LAYERS_VARIABLE) == (SHOWN if prefill else None)
        assert ("--enable-return-routed-experts" in worker.argv) == prefill
    assert not locality(made)


def test_the_variable_is_the_one_that_workers_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAYERS_VARIABLE, plan().workers[0].env[LAYERS_VARIABLE])
    assert signature.wanted_layers() == MASK


def test_without_a_profile_nothing_is_recorded() -> None:
    made = plan(router={"profile": None, "decode_policy": "random"}, capture_experts=True)
    assert all(LAYERS_VARIABLE not in w.env for w in made.workers)
    assert all("--enable-return-routed-experts" in w.argv for w in made.workers)
    assert not {"profile", "tau", "refit_on_drift"} & set(present(present(made.router).config))
    assert show.locality(made) == "" and "expert locality" not in show.commands(made)
    assert made.to_json()["locality"] is None


def test_layers_are_in_the_models_own_numbering(tmp_path: Path) -> None:
    profile, arrays = store.read(EMBEDDED)
    # A model whose first three layers and every second one after them are dense.
    layers, deep = tuple(range(3, 15, 2)), 15
    model = profile.model.model_copy(update={"layers": layers, "hidden_layers": deep})
    store.write(tmp_path / "p", profile.model_copy(update={"model": model}), arrays)
    made = plan(router={"profile": str(tmp_path / "p")})
    wanted = ",".join(str(layers[layer]) for layer in MASK)
    assert made.workers[0].env[LAYERS_VARIABLE] == wanted


def test_the_router_takes_what_the_plan_gives_it() -> None:
    made = plan(router={"tau": 0.05, "refit_on_drift": False, "decode_policy": "eldr@0.2"})
    config = RouterConfig.model_validate_json(json.dumps(present(made.router).config))
    assert (config.profile, config.tau) == (str(EMBEDDED), 0.05)
    assert (config.refit_on_drift, config.decode_policy) == (False, "eldr@0.2")
    assert not {"tau", "refit_on_drift"} & set(present(present(plan().router).config)), (
        "the router's own defaults"
    )


def test_a_relative_profile_starts_at_the_files_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EMBEDDED, tmp_path / "deployments" / "mine")
    file = tmp_path / "deployments" / "d.yaml"
    file.write_text("name: t\nrouter: {profile: ./mine, decode_policy: eldr}\n")
    monkeypatch.chdir(tmp_path)
    made = resolve(load_deployment("deployments/d.yaml"))
    assert (
        Path(present(present(made.router).config)["profile"]) == tmp_path / "deployments" / "mine"
    )
    again = resolve(load_deployment(file).on_device("cuda"))
    assert present(present(again.router).config)["profile"] == made.router.config["profile"]  # type: ignore[index, union-attr]


def test_a_dry_run_says_it_in_one_line() -> None:
    made = plan(router={"tau": 0.3}, decode={"replicas": 4})
    (line,) = [x for x in show.commands(made).splitlines() if "expert locality" in x]
    assert line == (
        "# expert locality: decode policy eldr, tau 0.3, centroids follow drift; profile "
        f"{EMBEDDED}, layers {SHOWN}, refitted from 2 to 4 decode workers"
    )
    named = show.locality(plan(router={"decode_policy": "eldr@0.05", "refit_on_drift": False}))
    assert "tau 0.05, centroids stay" in named
    part = show.locality(plan(router={"decode_policy": "composed@eldr+br0", "tau": 0.2}))
    assert "decode policy composed@eldr+br0, tau 0.2, centroids follow drift" in part
    clock = show.locality(plan(router={"decode_policy": "eldr@artifact"}))
    assert "tau 0.1, centroids refitted every 1 s on the last 5 s; profile" in clock
    other = show.locality(plan(router={"decode_policy": "random"}))
    assert other.startswith("expert locality: decode policy random; profile ")


def test_the_plan_is_plain_data() -> None:
    found = json.loads(json.dumps(plan().to_json()))["locality"]
    assert found["profile"] == str(EMBEDDED) and found["layers"] == MASK


def test_the_recipe() -> None:
    made = resolve(load_deployment(recipes_dir() / "cpu-eldr.yaml"))
    assert [w.role for w in made.workers] == ["prefill", *["decode"] * 4]
    assert {(w.kv_tokens, w.max_running) for w in made.workers} == {(16384, 16)}
    assert (
        present(present(made.router).config)["decode_policy"] == "eldr"
        and made.router.config["tau"] == 0.1  # type: ignore[index, union-attr]
    )
    assert all("--enable-return-routed-experts" in w.argv for w in made.workers)
    assert not fatal(locality(made))


@pytest.mark.parametrize("name", ["one-gpu", "qwen3-30b-a3b-8gpu"])
def test_what_the_gpu_recipes_show_in_comments_is_a_deployment(name: str, tmp_path: Path) -> None:
    """Uncommented, with the profile that is at hand, it resolves; another model's is refused."""
    lines = (recipes_dir() / f"{name}.yaml").read_text().splitlines()
    shown = [x.replace("# ", "", 1) for x in lines if x.startswith(("  # decode_p", "  # tau"))]
    kept = [x for x in lines if not x.startswith("  decode_policy")]
    (tmp_path / "d.yaml").write_text("\n".join([*kept, *shown, "  profile: embedded"]))
    if name == "qwen3-30b-a3b-8gpu":
        shutil.copytree(recipes_dir() / "configs", tmp_path / "configs")
    found = fatal(locality(resolve(load_deployment(tmp_path / "d.yaml"))))
    if name == "one-gpu":
        assert not found
    else:
        assert [x for x in found if "6 MoE layers, this model has 48" in x]
        assert [x for x in found if "48 experts a layer, this model has 128" in x]
        assert [x for x in found if "4 experts a token, this model has 8" in x]


def test_a_missing_profile_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="toolkit profile") as caught:
        plan(router={"profile": str(tmp_path / "none")})
    assert "--out " + str(tmp_path / "none") in str(caught.value)


def test_a_damaged_profile_says_how_to_mend_it(tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED, tmp_path / "p")
    (tmp_path / "p" / "arrays.safetensors").write_bytes(b"no")
    with pytest.raises(LaunchError, match="Copy the whole folder again"):
        plan(router={"profile": str(tmp_path / "p")})


def test_a_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    (found,) = fatal(locality(plan(model=str(tiny_model(tmp_path)))))
    assert "router.profile" in found and "config or weights are others" in found
    assert "measure it again" in found


def test_weights_that_cannot_be_read_are_a_problem_not_a_traceback(tmp_path: Path) -> None:
    made = plan(model=str(tiny_model(tmp_path)))
    (tmp_path / "config.json").write_text("{")
    (found,) = fatal(locality(made))
    assert "cannot be compared" in found


def test_more_decode_workers_than_fitted_requests_are_refused() -> None:
    assert not fatal(locality(plan(decode={"replicas": 149})))
    (found,) = fatal(locality(plan(decode={"replicas": 75, "dp": 2})))
    assert "150 decode workers" in found and "149 requests" in found


SHARED = {"tp": 2, "dp": 2, "dp_attention": True}


def test_ranks_that_share_their_experts_count_as_one() -> None:
    made = plan(decode={"replicas": 2} | SHARED)
    assert not locality(made)
    assert "refitted" not in show.locality(made), "the profile has two centroids"
    assert [w.get("dp_attention") for w in present(present(made.router).config)["workers"]] == [
        False,
        True,
        True,
    ]
    config = RouterConfig.model_validate_json(json.dumps(present(made.router).config))
    assert [w.dp_attention for w in config.workers] == [False, True, True]
    apart = show.locality(plan(decode={"replicas": 2, "dp": 2}))
    assert "refitted from 2 to 4 decode workers" in apart


@pytest.mark.parametrize("policy", ["eldr", "composed", "composed@eldr+br0"])
def test_one_server_whose_ranks_share_their_experts_is_worth_a_note(policy: str) -> None:
    (note,) = locality(plan(decode=SHARED, router={"decode_policy": policy}))
    assert not note.fatal and note.where == "router.decode_policy"
    assert "locality decides nothing" in note.what
    assert "decode.relocate" in note.repair
    movable = SHARED | {"ep": 2, "relocate": True}
    assert not locality(plan(decode=movable, router={"decode_policy": policy}))
    assert not locality(plan(decode=SHARED, router={"decode_policy": "level"}))
    assert not locality(plan(decode=SHARED | {"replicas": 2}, router={"decode_policy": policy}))
    assert not locality(plan(decode={"dp": 2}, router={"decode_policy": policy}))
    assert not locality(plan(decode={}, router={"decode_policy": policy}))


@pytest.mark.parametrize("policy", ["eldr", "eldr@0.3"])
def test_eldr_needs_a_profile(policy: str) -> None:
    (found,) = fatal(locality(plan(router={"profile": None, "decode_policy": policy})))
    assert f"{policy} needs a profile" in found and "router.profile" in found
    found = fatal(possible.quick(plan(router={"profile": None, "decode_policy": policy})))  # type: ignore[assignment]
    assert [x for x in found if "needs a profile" in x], "also before a launch without flag checks"


def test_eldr_needs_late_dispatch() -> None:
    (found,) = fatal(locality(plan(router={"dispatch": "concurrent"})))
    assert "dispatch is concurrent" in found and "dispatch: late" in found


def test_plain_workers_have_no_signatures() -> None:
    found = fatal(locality(plan(mode="plain")))
    assert [x for x in found if "only prefill workers record" in x]
    assert [x for x in found if "mode: pd with dispatch: late" in x]


@pytest.mark.parametrize(
    "router",
    [{"kind": "none", "decode_policy": None}, {"kind": "sglang", "decode_policy": "random"},
     {"dispatch": "concurrent", "decode_policy": "random"}],
)  # fmt: skip
def test_signatures_that_nobody_reads_are_worth_a_note(router: Any) -> None:
    (note,) = locality(plan(router=router))
    assert not note.fatal and "record signatures" in note.what


def test_every_refused_flag_is_one_of_sglangs() -> None:
    """A release that renames one of them must be noticed. Read as text: the import takes 20 s."""
    found = find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        pytest.skip("SGLang is not installed")
    folder = Path(next(iter(found.submodule_search_locations))) / "srt/arg_groups/fields"
    text = "\n".join(file.read_text() for file in folder.glob("*.py"))
    assert all(f"\n    {name}: A[" in text for name in (*SPLIT, *STORES))
    choices = (folder.parent / "choices.py").read_text()
    assert all(f'"{name}"' in choices for name in BYPASS)


def test_a_switched_off_capturer_or_other_layers_are_refused() -> None:
    off = plan(prefill={"args": {"enable_return_routed_experts": False}})
    (found,) = fatal(locality(off))
    assert "enable-return-routed-experts" in found and "remove the line" in found
    (found,) = fatal(locality(plan(env={LAYERS_VARIABLE: "1,2"})))
    assert f"is 1,2, the profile's layers are {SHOWN}" in found


def test_what_only_makes_signatures_incomplete_is_a_note() -> None:
    (note,) = locality(plan(prefill={"args": {"enable-hierarchical-cache": True}}))
    assert not note.fatal and "host memory" in note.what and "by load" in note.what


@pytest.mark.parametrize(
    ("config", "layers", "experts", "top_k"),
    [
        ({"num_hidden_layers": 6, "decoder_sparse_step": 1, "mlp_only_layers": [],
          "num_experts": 48, "num_experts_per_tok": 4}, 6, 48, 4),
        ({"num_hidden_layers": 7, "decoder_sparse_step": 2, "mlp_only_layers": [3]}, 2, None, None),
        ({"num_hidden_layers": 61, "first_k_dense_replace": 3, "moe_layer_freq": 1,
          "n_routed_experts": 256, "num_experts_per_tok": 8}, 58, 256, 8),
        ({"num_hidden_layers": 4, "first_k_dense_replace": 1, "moe_layer_freq": [0, 1, 1, 1]},
         None, None, None),
        ({"text_config": {"num_hidden_layers": 2, "decoder_sparse_step": 1, "num_experts": 8}},
         2, 8, None),
        ({"num_hidden_layers": 32, "num_local_experts": 8, "num_experts_per_tok": 2}, None, 8, 2),
    ],
)  # fmt: skip
def test_what_a_config_says_of_experts(
    tmp_path: Path, config: Any, layers: Any, experts: Any, top_k: Any
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    router = {"profile": None, "decode_policy": "random"}
    facts = plan(model=str(tmp_path), router=router).model
    assert (facts.moe_layers, facts.experts, facts.top_k) == (layers, experts, top_k)


def test_a_deployment_is_measured_without_the_profile_that_it_waits_for(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    router = {"profile": "not-yet", "decode_policy": "eldr", "tau": 0.2, "port": 4321}
    file.write_text(json.dumps({"name": "mine", "router": router}))
    deployment = load_deployment(file)
    with pytest.raises(LaunchError, match="measure it first: toolkit profile") as refused:
        resolve(deployment)
    assert str(tmp_path / "not-yet") in str(refused.value)
    measured = to_measure(deployment)
    assert resolve(measured).locality is None
    assert measured.capture_experts
    assert measured.router.port == 4321
