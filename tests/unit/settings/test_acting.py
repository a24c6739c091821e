"""A key that cannot act under the file's kind, mode, dispatch or device is refused, not ignored."""

import argparse
from pathlib import Path

import pytest
from sglang_router.router_args import RouterArgs

from docs import reference
from tests.unit.settings.written import load, problems_of
from toolkit.cli.profile import to_measure
from toolkit.launch.checks.possible import quick
from toolkit.launch.resolve import resolve
from toolkit.resources import recipes_dir
from toolkit.settings import acting
from toolkit.settings.load import load_deployment
from toolkit.settings.role import Role
from toolkit.settings.router.section import SGLANG_POLICIES, Router
from toolkit.settings.table import keys as keys_of_deployments
from toolkit.settings.transfer import Transfer

ONLY_OURS = {
    "first_token": "prefill",
    "tau": "0.1", "refit_on_drift": "true", "seed": "0", "record": "a.jsonl",
    "record_decisions": "d",
    "allow": "[]",
    "api_keys_file": "a", "admin_key_env": "A", "admin_key_file": "a", "admin_port": "4321",
    "parked_per_prefill": "4", "park_timeout_s": "9", "silent_s": "2", "hung_s": "9",
    "lost_s": "60", "first_token_timeout_s": "9", "idle_timeout_s": "9", "eject_share": "0.5",
    "max_retries": "3", "max_parts": "8", "max_body_mib": "9", "max_body_total_mib": "99",
    "max_connections": "9", "relays": "2", "head_timeout_s": "9", "keepalive_s": "9",
    "body_timeout_s": "9", "routers": "2",
    "body_pace_kib": "1", "accept_gzip": "false", "parse_cpu_ms": "50", "write_stall_s": "9",
    "classes": "{}", "rebalance": "true", "moves": "replay", "cors": "['https://app.example']",
}  # fmt: skip
ANY_ROUTERS = {
    "host": "127.0.0.1", "port": "30000", "node": "n", "open": "false", "api_key_env": "KEY",
    "max_inflight": "5", "max_queue": "5", "request_timeout_s": "9", "prefill_policy": "random",
    "decode_policy": "random",
}  # fmt: skip
ONLY_SGLANGS = {"args": "{policy: random}"}
WITHOUT_A_ROUTER = {"dispatch": "concurrent", "profile": "embedded"}
VALUES = ONLY_OURS | ANY_ROUTERS | ONLY_SGLANGS | WITHOUT_A_ROUTER
ACTS = {
    "toolkit": {**ONLY_OURS, **ANY_ROUTERS, **WITHOUT_A_ROUTER},
    "sglang": {**ANY_ROUTERS, **ONLY_SGLANGS, **WITHOUT_A_ROUTER},
    "none": WITHOUT_A_ROUTER,
}


def test_each_key_of_the_router_is_in_the_table_and_here() -> None:
    """A new one has to say where it acts: in `acting.ROUTER`, and in the lists above."""
    assert set(acting.ROUTER) == set(Router.model_fields), "say in acting.ROUTER where it acts"
    assert set(VALUES) == set(Router.model_fields) - {"kind"}, "put it into a list of this file"


@pytest.mark.parametrize("kind", ["toolkit", "sglang", "none"])
@pytest.mark.parametrize("key", sorted(VALUES))
def test_a_router_key_is_taken_or_refused(tmp_path: Path, kind: str, key: str) -> None:
    text = f"router:\n  kind: {kind}\n  {key}: {VALUES[key]}"
    if key in ACTS[kind]:
        assert key in load(tmp_path, text).router.model_fields_set
        return
    (problem,) = problems_of(tmp_path, text)
    able = next(other for other in ACTS if key in ACTS[other])
    assert problem.startswith(f"4: router.{key}: ")
    assert f"use kind: {able}" in problem and "remove" in problem


def test_a_default_or_a_key_without_a_value_never_offends(tmp_path: Path) -> None:
    unset = Router.model_fields.keys() - Router.NEVER_EMPTY
    assert unset >= VALUES.keys() - {"host", "seed", "open", "allow", "args"}
    for mode in ("pd", "plain"):
        for kind in ACTS:
            keys = ", ".join(f"{key}: null" for key in unset)
            text = f"mode: {mode}\nrouter: {{kind: {kind}, args: {{}}, {keys}}}"
            assert load(tmp_path, text).router.kind == kind


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("mode: plain\ntransfer: {backend: nixl}", "transfer.backend", "plain moves no KV"),
        ("mode: plain\ntransfer: {ib_device: m}", "transfer.ib_device", "use mode: pd, or remove"),
        ("mode: plain\nrouter: {prefill_policy: random}", "router.prefill_policy",
         "set decode_policy, which plain uses"),
        ("mode: plain\nrouter: {parked_per_prefill: 4}", "router.parked_per_prefill",
         "mode plain has no prefill workers apart: use mode: pd, or remove it"),
        ("mode: plain\nrouter: {park_timeout_s: 4}", "router.park_timeout_s", "no prefill workers"),
        ("mode: plain\nrouter: {tau: 0.1}", "router.tau", "no prefill workers"),
        ("mode: plain\nrouter: {refit_on_drift: no}", "router.refit_on_drift", "use mode: pd"),
        ("mode: plain\nrouter: {kind: sglang, decode_policy: random}", "router.decode_policy",
         "set router.args: {policy: NAME} instead"),
        ("mode: plain\nrouter: {kind: sglang, prefill_policy: random}", "router.prefill_policy",
         "set router.args: {policy: NAME} instead"),
        ("mode: plain\nprefill: {}", "prefill", "mode plain has no 'prefill' workers: describe w"),
        ("mode: plain\ndecode: {tp: 2}", "decode", "describe worker"),
        ("worker: {}", "worker", "mode pd has no 'worker' workers: describe prefill and decode"),
        ("router: {dispatch: concurrent, parked_per_prefill: 4}", "router.parked_per_prefill",
         "parks no prefill: use dispatch: late, or remove it"),
        ("router: {park_timeout_s: 4, dispatch: concurrent}", "router.park_timeout_s", "late"),
        ("router: {first_token: prefill, dispatch: concurrent}", "router.first_token",
         "has no prefill apart: use dispatch: late, or remove it"),
        ("mode: plain\nrouter: {first_token: decode}", "router.first_token", "use mode: pd"),
        ("device: cuda\ndecode: {background: true}", "decode.background",
         "only CPU workers share cores: remove it"),
        ("prefill: {gpus: [0]}", "prefill.gpus", "no GPUs: set device: cuda, or remove it"),
        ("mode: plain\nworker: {bootstrap_port: 9000}", "worker.bootstrap_port", "remove it"),
        ("transfer: {ib_device: mlx5_0}", "transfer.ib_device", "mooncake_tcp uses no RDMA"),
        ("device: cuda\ntransfer: {backend: mooncake_tcp, ib_device: m}", "transfer.ib_device",
         "set backend: mooncake"),
        ("base_port: 9000", "base_port", "one host looks for free ports: set port of a role"),
        ("hosts: {n: {address: 10.0.0.1}}\nbase_port: 9000", "base_port", "or remove it"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_act_is_refused(tmp_path: Path, text: str, key: str, said: str) -> None:
    (problem,) = problems_of(tmp_path, text)
    line = 2 + text.count("\n")
    assert problem.startswith(f"{line}: {key}: ") and said in problem


@pytest.mark.parametrize(
    "text",
    [
        "mode: plain\nrouter: {decode_policy: random}",
        "mode: plain\nrouter: {kind: sglang, args: {policy: random}}",
        "mode: plain\nworker: {gpus: [0]}\ndevice: cuda",
        "router: {dispatch: late, parked_per_prefill: 4, park_timeout_s: 4}",
        "decode: {background: true}",
        "device: cuda\ndecode: {background: false, gpus: [0], early_place: true}",
        "device: cuda\ntransfer: {ib_device: mlx5_0}",
        "device: cuda\ntransfer: {backend: nixl, ib_device: mlx5_0}",  # SGLang's HiCache, perhaps
        "prefill: {bootstrap_port: 9000}",
        "decode: {bootstrap_port: 9000}",
        "hosts: {a: {address: 10.0.0.1}, b: {address: 10.0.0.2}}\nbase_port: 9000",
    ],
)
def test_where_it_can_act_it_may_stand(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text)


@pytest.mark.parametrize("key", sorted(SGLANG_POLICIES))
def test_a_policy_that_only_ours_has_is_refused_of_sglang_s_router(
    tmp_path: Path, key: str
) -> None:
    (problem,) = problems_of(tmp_path, f"router: {{kind: sglang, {key}: least_tokens}}")
    assert problem.startswith(f"2: router.{key}: router: sglang cannot do least_tokens: use kind")
    for name in SGLANG_POLICIES[key]:
        assert load(tmp_path, f"router: {{kind: sglang, {key}: {name}}}")
    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser)
    flag = f"--{key.replace('_', '-')}"
    (action,) = (each for each in parser._actions if flag in each.option_strings)
    assert action.choices == list(SGLANG_POLICIES[key])


def test_all_of_them_come_at_once_each_with_its_line(tmp_path: Path) -> None:
    found = problems_of(
        tmp_path,
        "router:\n  parked_per_prefill: 4\n  prefill_policy: random\nmode: plain\n"
        "transfer:\n  backend: nixl\n  ib_device: m\ndecode: {}\nworker: {gpus: [0]}\nbase_port: 9",
    )
    assert sorted(":".join(each.split(":")[:2]) for each in found) == [
        "10: worker.gpus", "11: base_port", "3: router.parked_per_prefill",
        "4: router.prefill_policy", "7: transfer.backend", "8: transfer.ib_device", "9: decode",
    ]  # fmt: skip


def test_the_page_of_keys_says_where_they_act() -> None:
    where = {key.path: key.where for key in keys_of_deployments()}
    assert where["router.seed"] == "only with `kind: toolkit`"
    assert where["router.args"] == "only with `kind: sglang`"
    assert where["router.parked_per_prefill"] == (
        "only with `kind: toolkit`, `mode: pd`, `dispatch: late`"
    )
    assert where["transfer.backend"] == "only with `mode: pd`"
    assert where["ROLE.background"] == "only with `device: cpu`"
    assert where["router.api_key_env"] == ""
    page = reference.keys().splitlines()
    (seed,) = (line for line in page if line.startswith("| `seed` |"))
    assert seed.endswith("; only with `kind: toolkit` |")


def test_tables_name_keys_that_there_are() -> None:
    assert set(acting.DEVICE) < set(Role.model_fields)
    assert {"backend", "ib_device"} == set(Transfer.model_fields), "acting.transfer_problem"


def test_on_the_other_device_a_file_loses_what_only_the_first_could_do(tmp_path: Path) -> None:
    cpu = load(tmp_path, "decode: {background: true, max_running: 3}")
    moved = cpu.on_device("cuda").decode
    assert (moved.background, moved.max_running) == (False, 3)
    assert cpu.on_device("cpu") == cpu
    cuda = load(tmp_path, "device: cuda\nprefill: {gpus: [0]}\ntransfer: {ib_device: m}")
    assert cuda.on_device("cpu").prefill.gpus is None
    assert cuda.on_device("cpu").transfer.ib_device is None
    assert cuda.on_device("cuda") == cuda
    for recipe in recipes_dir().glob("*.yaml"):
        for device in ("cpu", "cuda"):
            assert load_deployment(recipe).on_device(device).device == device


@pytest.mark.parametrize("key", ["tau: 0.2", "refit_on_drift: false"])
def test_what_only_a_profile_lets_act_needs_one(tmp_path: Path, key: str) -> None:
    """At a launch. A policy can be changed while the router runs, so that any may stand here."""
    name, rest = key.split(":")[0], f"decode_policy: round_robin, {key}"
    (problem,) = (
        str(p) for p in quick(resolve(load(tmp_path, f"router: {{{rest}}}"))) if name in p.where
    )
    assert problem.startswith(f"router.{name}: ") and "set router.profile, or remove" in problem
    with_profile = load(tmp_path, f"router: {{{rest}, profile: embedded}}")
    assert not [p for p in quick(resolve(with_profile)) if name in p.where]
    assert name not in to_measure(with_profile).router.model_fields_set
