"""Every knob reaches the fleet by way of the file, and the policy object by way of its name."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.plan.tasks import candidate, document
from toolkit.plan import policy_text as text_of
from toolkit.plan.candidate import Candidate, Given
from toolkit.plan.errors import PlanError
from toolkit.plan.plain_data import write
from toolkit.plan.space import plain, searched
from toolkit.plan.split import Split, splits
from toolkit.policies import make_policy
from toolkit.settings.load import load_deployment
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.section import Router
from toolkit.simulate.of_deployment import fleet_of

OWN = candidate(
    decode={"tp": 4, "dp": 2, "dp_attention": True, "kv_tokens": 9000, "max_running": 32,
            "args": {"cuda-graph-max-bs-decode": 32}},
    prefill={"replicas": 8, "waiting": "sjf", "args": {"chunked_prefill_size": 1000}},
    router={"decode_policy": "composed@filter+eldr@0.3+brh@survival:0+user"},
)  # fmt: skip
KNOBS = {knob.name: knob for knob in searched(OWN, splits(OWN.deployment), local=True)}
POLICIES = (
    "brh@learned",
    "brh",
    "composed",
    "gimbal",
    "gimbal@0.8",
    "br0@3",
    "level",
    "eldr@0.2",
    "composed@filter+eldr@0.3+brh@survival:0:gamma=0.5+user",
)
REACHES = {
    "split": lambda f: Split(f.prefill.replicas, f.decode.replicas),
    "decode policy": lambda f: f.router.decode_policy,
    "prefill policy": lambda f: f.router.prefill_policy,
    "tau": lambda f: f.router.tau,
    "decode.max_running": lambda f: f.decode.slots * f.decode.dp,
    "decode.dp": lambda f: f.decode.dp,
    "chunked-prefill-size": lambda f: f.prefill.chunk,
    "prefill.waiting": lambda f: waiting(f.prefill.waiting_age_s),
    "router.parked_per_prefill": lambda f: f.router.parked_per_prefill,
    "gimbal kv": lambda f: policy(f).thresholds.kv,
    "gimbal diff": lambda f: policy(f).thresholds.diff,
    "gimbal load": lambda f: policy(f).thresholds.load,
    "s_greedy": lambda f: barrier(f)._stages.s_greedy,
    "brh predictor": lambda f: barrier(f).inflight.predictor.name,
    "brh horizon": lambda f: barrier(f).horizon,
    "brh gamma": lambda f: barrier(f).gamma,
    "brh beta": lambda f: barrier(f).beta,
}


def waiting(age: Any) -> Any:
    return "fcfs" if age is None else f"sjf:{age:g}"


def policy(fleet: Any) -> Any:
    return make_policy(fleet.router.decode_policy, 0, "decode", fleet.router.tau)


def barrier(fleet: Any) -> Any:
    found = policy(fleet)
    return getattr(found, "barrier", found)


def test_every_knob_is_looked_at_here() -> None:
    assert set(KNOBS) == set(REACHES)


@given(
    st.sampled_from(sorted(KNOBS)), st.integers(0, 20), st.sampled_from(POLICIES), st.integers(0, 5)
)
@settings(max_examples=examples(150), deadline=None)
def test_a_value_reaches_the_running_policy_through_the_file(
    name: Any, at: int, decode: Any, other: int
) -> None:
    """apply, write, load, build the fleet and the policy: the value is there, nothing else went."""
    knob = KNOBS[name]
    start = {**OWN.document, "router": {"decode_policy": decode, "max_queue": 77}}
    if not knob.applies(start):
        return
    value = knob.values[at % len(knob.values)]
    changed = knob.write(start, value)
    assert knob.read(changed) == value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.yaml"
        write(path, changed, ["said"])
        fleet = fleet_of(load_deployment(path))
    assert REACHES[name](fleet) == value  # type: ignore[no-untyped-call]
    assert fleet == Candidate.of(changed, Given()).fleet
    assert changed["router"]["max_queue"] == 77
    assert start["router"] == {"decode_policy": decode, "max_queue": 77}, "not changed in place"
    beside = sorted(KNOBS)[other]
    if beside != name and KNOBS[beside].applies(start) and KNOBS[beside].applies(changed):
        kept = {"decode policy", "prefill policy"} & {name, beside}
        assert kept or KNOBS[beside].read(changed) == KNOBS[beside].read(start)


@pytest.mark.parametrize(
    ("policy", "there"),
    [
        ("brh@learned", {"s_greedy", "brh predictor", "brh horizon", "brh gamma", "brh beta"}),
        ("composed@filter+level+user", {"s_greedy"}),
        ("composed", {"s_greedy", "tau"}),
        ("eldr", {"tau"}),
        ("gimbal", {"gimbal kv", "gimbal diff", "gimbal load"}),
        ("shortest_queue", set()),
        ("eldr@paper", set()),
        ("br0@paper:0", set()),
        ("brh@paper:survival", set()),
        ("gimbal@paper", set()),
    ],
)
def test_knobs_of_a_policy_are_asked_only_where_it_is_used(policy: str, there: Any) -> None:
    conditional = [k for k in KNOBS.values() if k.name.split()[0] in ("brh", "gimbal", "tau")]
    conditional.append(KNOBS["s_greedy"])
    file = document(router={"decode_policy": policy})
    assert {knob.name for knob in conditional if knob.applies(file)} == there


def test_values_that_the_file_rules_out_are_not_tried() -> None:
    assert KNOBS["decode.dp"].values == (1, 2, 4)
    assert KNOBS["decode.max_running"].values == (16, 32, 64), "64: 32 a rank, as captured"
    assert KNOBS["chunked-prefill-size"].values == (250, 500, 1000, 2000)
    few = candidate(prefill={"max_running": 20})
    found = {k.name: k for k in searched(few, splits(few.deployment), local=False)}
    assert found["router.parked_per_prefill"].values == (8, 16)
    assert not any("eldr" in name for name in found["decode policy"].values)
    assert "decode.dp" not in found, "without DP attention ranks are like replicas"


def test_shortest_first_parks_more_unless_the_file_says_how_many() -> None:
    """What the knob reads is what runs, said in the file or not."""
    plain = candidate()
    found = {k.name: k for k in searched(plain, splits(plain.deployment), local=False)}
    parked, waiting = found["router.parked_per_prefill"], found["prefill.waiting"]
    assert waiting.values == ("fcfs", "sjf:1", "sjf:5")
    for order in waiting.values:
        for limit in (None, 16):
            file = waiting.write(plain.document, order)
            file = file if limit is None else parked.write(file, limit)
            made = Candidate.of(file, Given())
            assert parked.read(file) == made.fleet.router.parked_per_prefill
            assert waiting.read(file) == order


def test_what_is_never_parked_is_not_searched() -> None:
    """The file would be refused."""
    for dispatch, tried in (("late", True), ("concurrent", False)):
        own = candidate(router={"dispatch": dispatch})
        found = {k.name: k for k in searched(own, splits(own.deployment), local=False)}
        assert found["router.parked_per_prefill"].applies(own.document) == tried


def test_dp_keeps_the_pool_of_a_rank_and_shares_out_what_the_server_runs() -> None:
    fleets = {
        dp: Candidate.of(KNOBS["decode.dp"].write(OWN.document, dp), Given()).fleet.decode
        for dp in (1, 2, 4)
    }
    assert {dp: f.slots for dp, f in fleets.items()} == {1: 32, 2: 16, 4: 8}
    assert {f.kv_tokens for f in fleets.values()} == {9000}


def test_the_baseline_counts_requests_and_keeps_the_rest() -> None:
    made = plain(OWN.document)
    router = Candidate.of(made, Given()).fleet.router
    assert (router.prefill_policy, router.decode_policy) == ("round_robin", "shortest_queue")
    assert made["decode"] == OWN.document["decode"] and made["prefill"] == OWN.document["prefill"]


def test_others_are_the_nearest_values() -> None:
    horizon = KNOBS["brh horizon"]
    file = document(router={"decode_policy": "brh@learned:horizon=20"})
    assert horizon.others(file, 2) == [10, 40]
    assert horizon.others(document(router={"decode_policy": "brh@learned:horizon=33"}), 9) == [
        10, 20, 40, 80, 160,
    ]  # fmt: skip


def test_parts_of_a_composed_policy_are_found_and_changed_alone() -> None:
    text = "composed@filter+eldr@0.1+brh@survival:0+user"
    assert text_of.with_brh(text, "beta", 24) == (
        "composed@filter+eldr@0.1+brh@survival:0:beta=24+user"
    )
    assert text_of.with_s_greedy("composed", 0) == "composed@filter+eldr+level@0+user"
    assert text_of.without_tau(text) == "composed@filter+eldr+brh@survival:0+user"
    assert text_of.with_brh("brh@survival:gamma=0.5", "gamma", None) == "brh@survival"


# ---- splits ----


def test_splits_use_exactly_the_gpus_of_the_file() -> None:
    made = candidate(prefill={"replicas": 2, "tp": 2}, decode={
        "replicas": 4, "kv_tokens": 9000, "max_running": 8})  # fmt: skip
    found = splits(made.deployment)
    assert found == (Split(1, 6), Split(2, 4), Split(3, 2))
    assert all(2 * p + d == made.gpus == 8 for p, d in found)
    assert splits(made.deployment, 3) == (Split(1, 2), Split(2, 1))


def test_splits_that_cannot_be() -> None:
    with pytest.raises(PlanError, match="1 worker: a prefill and a decode worker are two"):
        splits(candidate().deployment, 1)
    hosts = {"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.2"}}
    named = candidate(
        hosts=hosts, prefill={"hosts": ["a"]},
        decode={"hosts": ["b"], "kv_tokens": 9000, "max_running": 8},
    )  # fmt: skip
    with pytest.raises(PlanError, match="do not fit the hosts"):
        splits(named.deployment, 5)


def test_hosts_are_dealt_out_anew() -> None:
    names = "abcd"
    made = candidate(
        hosts={name: {"address": f"10.0.0.{i}"} for i, name in enumerate(names)},
        prefill={"hosts": ["a"]},
        decode={"replicas": 3, "hosts": list("bcd"), "kv_tokens": 9000, "max_running": 8},
    )
    knob = searched(made, splits(made.deployment), local=False)[0]
    changed = knob.write(made.document, Split(3, 1))
    assert changed["prefill"]["hosts"] == ["a", "b", "c"]
    assert changed["decode"]["hosts"] == ["d"]


def test_what_a_file_leaves_out_is_what_the_router_takes() -> None:
    own = RouterConfig.model_fields
    made = candidate(router={"kind": "toolkit"})
    for key in ("dispatch", "prefill_policy", "decode_policy", "first_token", "parked_per_prefill"):
        assert getattr(made.fleet.router, key) == own[key].default, key
    for key in own.keys() & Router.model_fields.keys() - {"port", "admin_port"}:
        assert Router.model_fields[key].default == own[key].default, key
