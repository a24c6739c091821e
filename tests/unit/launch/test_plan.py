"""Resolving: ports, GPUs, flags, recipes."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.kernels import examples
from tests.present import present
from tests.sglang_python import run_python
from tests.unit.launch.stand_ins import deployment, tiny_model
from toolkit.contract.variables import EARLY_CHOICE_VARIABLE
from toolkit.launch.checks import possible
from toolkit.launch.checks.locality import locality
from toolkit.launch.errors import LaunchError
from toolkit.launch.placement import ReplicaRequest, place
from toolkit.launch.plan import Plan
from toolkit.launch.ports import CountedPorts, FreePorts
from toolkit.launch.resolve import resolve
from toolkit.resources import recipes_dir
from toolkit.settings.load import load_deployment
from toolkit.settings.router.bounds import Bodies, Waits
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.section import Router

LIMITS = (*Waits.model_fields, *Bodies.model_fields)
RECIPES = sorted(recipes_dir().glob("*.yaml"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny_model(tmp_path_factory.mktemp("model"))


def used_ports(plan: Plan, host: str) -> list[int]:
    ports = [p for w in plan.workers if w.host == host for p in w.ports]
    return ports + [router.port for router in plan.routers if router.node == host]


def test_there_are_these_recipes() -> None:
    names = {r.stem for r in RECIPES}
    gpu = {"one-gpu", "qwen3-30b-a3b-8gpu", "gpt-oss-120b-8gpu", "qwen3-235b-2x8"}
    gpu |= {"deepseek-v3-multinode", "qwen3-next-80b-8gpu"}
    cpu = {"demo", "dp", "eldr", "classes", "stages", "experts", "speculative", "all", "routers"}
    assert names == {f"cpu-{name}" for name in cpu} | gpu


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.stem)
def test_recipe_resolves(recipe: Any) -> None:
    plan = resolve(load_deployment(recipe))
    assert {w.role for w in plan.workers} == {"prefill", "decode"}
    assert plan.dispatch == "late"
    assert not possible.routing(plan)
    assert not locality(plan)
    for host in {w.host for w in plan.workers}:
        ports = used_ports(plan, host)
        assert len(ports) == len(set(ports))
    for worker in plan.workers:
        assert ("torch_native" in worker.argv) == (plan.device == "cpu")
        assert ("CUDA_VISIBLE_DEVICES" in worker.env) == (plan.device == "cuda")
    assert plan.to_json()["workers"][0]["argv"]


def test_the_demo_on_cuda_is_a_cuda_plan() -> None:
    demo = load_deployment(recipes_dir() / "cpu-demo.yaml")
    plan = resolve(demo.on_device("cuda"))
    assert plan.transfer == "mooncake"
    assert [w.gpus for w in plan.workers] == [(0,), (1,), (2,)]
    for worker in plan.workers:
        assert not {"--dtype", "--attention-backend", "--sleep-on-idle"} & set(worker.argv)
        assert not [k for k in worker.env if "CPU" in k]


def test_every_host_computes_the_same_ports() -> None:
    recipe = load_deployment(recipes_dir() / "deepseek-v3-multinode.yaml")
    first, second = resolve(recipe, "prefill-a"), resolve(recipe, "decode-e")
    assert [w.ports for w in first.workers] == [w.ports for w in second.workers]
    assert [w.name for w in second.workers if w.local] == ["decode-0-node-4"]
    assert [router.local for router in first.routers] == [True, False]
    assert not second.own_routers
    assert [r.port for r in first.routers] == [r.port for r in second.routers] == [8000, 8000]
    ranks = [w.argv[w.argv.index("--node-rank") + 1] for w in first.workers if w.role == "decode"]
    assert ranks == [str(i) for i in range(9)]


def test_loads_of_several_nodes_go_to_the_process_that_looks_at_them() -> None:
    """`total_tokens` would send them to the DP controller, and prefill ranks would register every
    request with a blocking POST."""
    recipe = load_deployment(recipes_dir() / "deepseek-v3-multinode.yaml")
    for worker in resolve(recipe, "prefill-a").workers:
        assert "--load-balance-method" not in worker.argv


def test_workers_that_share_a_gpu_start_in_turn() -> None:
    plan = resolve(load_deployment(recipes_dir() / "one-gpu.yaml"))
    assert [w.after for w in plan.workers] == [(), ("prefill-0",)]


@settings(max_examples=examples(200), deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=6),
    hosts=st.lists(st.integers(1, 8), min_size=1, max_size=5),
)
def test_planned_gpus_never_overlap(sizes: list[tuple[int, int]], hosts: list[int]) -> None:
    requests = [ReplicaRequest(f"w-{i}", nodes, per) for i, (nodes, per) in enumerate(sizes)]
    gpus = {f"h{i}": count for i, count in enumerate(hosts)}
    try:
        placed = place(requests, gpus, needs_gpus=True)
    except LaunchError:
        # Refusing is only right when the first-fit really ran out somewhere.
        assert sum(n * p for n, p in sizes) > 0
        return
    taken = set()
    for request in requests:
        places = placed[request.name]
        assert [p.node_rank for p in places] == list(range(request.nodes))
        assert len({p.host for p in places}) == request.nodes
        for spot in places:
            assert len(spot.gpus) == request.per_node
            for gpu in spot.gpus:
                assert gpu < gpus[spot.host]
                assert (spot.host, gpu) not in taken
                taken.add((spot.host, gpu))


@given(counts=st.lists(st.integers(1, 9), max_size=30), fixed=st.sets(st.integers(30000, 30100)))
def test_counted_ports_never_overlap(counts: list[int], fixed: Any) -> None:
    ports = CountedPorts(30000, fixed)
    seen = set(fixed)
    for count in counts:
        block = set(range(first := ports.take(count), first + count))
        assert not block & seen
        seen |= block


def test_the_port_of_the_handshake_between_nodes_is_nobody_elses(model: Any) -> None:
    found = run_python(
        "from patches.worker import prepare_process\n"
        "prepare_process()\n"
        "from sglang.srt.server_args import DP_ATTENTION_HANDSHAKE_PORT_DELTA as delta\n"
        "print(delta)"
    )
    delta = int(found.stdout.splitlines()[-1])
    role = {"tp": 2, "dp": 2, "dp_attention": True}
    for worker in resolve(deployment(model, prefill=role, decode=role)).workers:
        assert worker.dist_port + delta in worker.ports  # type: ignore[operator]


def test_free_ports_are_distinct_and_avoid_those_given() -> None:
    first = FreePorts(rng=random.Random(7)).take(8)
    again = FreePorts(range(first, first + 8), random.Random(7))
    blocks = [set(range(p, p + 8)) for p in (again.take(8) for _ in range(20))]
    assert len(set.union(*blocks)) == 160
    assert not set.union(*blocks) & set(range(first, first + 8))


def test_too_few_gpus_says_how_to_share(model: Any) -> None:
    big = deployment(
        model, device="cuda", hosts={"n": {"address": "127.0.0.1", "gpus": 2}}, decode={"tp": 4}
    )
    with pytest.raises(LaunchError, match=r"one-gpu\.yaml"):
        resolve(big)


def test_args_win_over_defaults_and_reserved_ones_are_refused(model: Any) -> None:
    plan = resolve(deployment(model, decode={"args": {"max_total_tokens": 7, "skip": False}}))
    argv = plan.workers[1].argv
    assert argv[argv.index("--max-total-tokens") + 1] == "7"
    assert "--skip" not in argv and argv.count("--max-total-tokens") == 1
    with pytest.raises(LaunchError, match=r"set decode\.tp instead"):
        resolve(deployment(model, decode={"args": {"tp-size": 2}}))


def test_cpu_flags_and_environment_of_the_roles(model: Any) -> None:
    prefill, decode = resolve(deployment(model, decode={"tp": 2})).workers
    assert prefill.env["SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"] == "0"
    assert prefill.env["SGLANG_ENABLE_FAILED_SESSION_PROBE"] == "1"
    assert prefill.env["MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"] == "65535"
    assert "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX" not in decode.env
    assert len(decode.env["SGLANG_CPU_OMP_THREADS_BIND"].split("|")) == 2
    assert "--optimistic-prefill-attempts" in prefill.argv
    assert "--optimistic-prefill-attempts" not in decode.argv


@pytest.mark.parametrize(
    ("device", "role", "without_graphs"),
    [
        ("cuda", {}, True),
        ("cuda", {"args": {"moe_a2a_backend": "deepep"}}, False),
        ("cuda", {"dp_attention": False, "dp": 1}, False),
        ("cuda", {"dp": 1}, False),
        ("cuda", {"args": {"disable-prefill-cuda-graph": False}}, False),
        ("cuda", {"args": {"enable_return_routed_experts": False}}, False),
        ("cpu", {}, False),
    ],
)
def test_captured_experts_of_dp_ranks_need_prefills_without_graphs(
    model: Any, device: str, role: Any, without_graphs: bool
) -> None:
    ranks = {"tp": 2, "dp": 2, "dp_attention": True} | role
    fields = {"device": device, "prefill": ranks, "decode": {"tp": 2}}
    prefill, decode = resolve(deployment(model, capture_experts=True, **fields)).workers
    assert ("--disable-prefill-cuda-graph" in prefill.argv) == without_graphs
    assert "--disable-prefill-cuda-graph" not in decode.argv
    for worker in resolve(deployment(model, **fields)).workers:
        assert "--disable-prefill-cuda-graph" not in worker.argv


@pytest.mark.parametrize("router", ["sglang", "none"])
def test_late_dispatch_needs_our_router(model: Any, router: str) -> None:
    plan = resolve(deployment(model, router={"kind": router, "dispatch": "late"}))
    assert any("before the prefill runs" in p.what for p in possible.routing(plan))
    assert not possible.routing(resolve(deployment(model, router=router)))


def test_a_used_port_and_a_repeated_one_are_found(model: Any) -> None:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        plan = resolve(deployment(model, decode={"port": port}))
        assert any(f"port {port} is in use" in p.what for p in possible.ports(plan))
    same = resolve(deployment(model, decode={"port": port}, router={"port": port}))
    assert sum("twice" in p.what for p in possible.ports(same)) == 2


def test_memory_and_missing_weights_are_found(model: Any, tmp_path: Path) -> None:
    huge = resolve(deployment(model, decode={"replicas": 5, "kv_tokens": 10**10}))
    assert any(p.where == "memory" for p in possible.memory(huge))
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    empty = resolve(deployment(tmp_path / "m"))
    assert possible.model(empty, dry_run=False)[0].fatal
    assert not possible.model(empty, dry_run=True)[0].fatal


def test_missing_model_says_how_to_mend(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"set model\.path"):
        resolve(deployment(tmp_path / "nowhere"))


def test_prefill_workers_ask_early_where_dispatch_is_late(model: Any) -> None:
    def told(**sections: Any) -> dict[str, str | None]:
        workers = resolve(deployment(model, **sections)).workers
        return {worker.role: worker.env.get(EARLY_CHOICE_VARIABLE) for worker in workers}

    assert told() == {"prefill": "0.03", "decode": None}
    assert told(prefill={"early_choice": 0}) == {"prefill": "0", "decode": None}
    off: dict[str, dict[str, Any]] = {
        "null": {"prefill": {"early_choice": None}},
        "concurrent": {"router": {"dispatch": "concurrent"}},
        "SGLang's router": {"router": {"kind": "sglang"}},
    }
    for sections in off.values():
        assert told(**sections) == {"prefill": None, "decode": None}
    with pytest.raises(ValidationError, match="prefill workers ask for decode workers"):
        deployment(model, decode={"early_choice": 0.1})
    for name in ("concurrent", "SGLang's router"):
        with pytest.raises(ValidationError, match="only our router with dispatch: late"):
            deployment(model, prefill={"early_choice": 0.1}, **off[name])


def test_early_places_are_for_decode_ranks_of_one_process(model: Any) -> None:
    plan = resolve(deployment(model, decode={"early_place": True}))
    told = {worker.role: worker.env.get("TOOLKIT_EARLY_PLACE") for worker in plan.workers}
    assert told == {"prefill": None, "decode": "1"}
    sizes = {"early_place": True, "tp": 4, "dp": 2, "dp_attention": True}
    with pytest.raises(ValidationError, match="each of the 2 DP ranks is 2 processes"):
        deployment(model, decode=sizes)
    deployment(model, decode=sizes | {"dp": 4})
    deployment(model, decode={"early_place": True, "dp": 4})
    with pytest.raises(ValidationError, match="set it under decode"):
        deployment(model, prefill={"early_place": True})


@pytest.mark.parametrize(("backend", "dispatch"), [(None, "dynamic"), ("deepep", "static")])
def test_experts_that_move_are_sent_tokens_by_their_slots(
    model: Any, backend: Any, dispatch: str
) -> None:
    ranks = {"tp": 2, "ep": 2, "relocate": True}
    ranks |= {"args": {"moe-a2a-backend": backend}} if backend else {}  # type: ignore[dict-item]
    plan = resolve(deployment(model, decode=ranks).on_device("cuda"))
    (argv, env) = next((w.argv, w.env) for w in plan.workers if w.role == "decode")
    assert argv[argv.index("--ep-dispatch-algorithm") + 1] == dispatch
    assert "--enable-return-routed-experts" in argv
    assert env["TOOLKIT_RELOCATE"] == "{run_dir}/decode-0.experts.json"
    for ep in (1, 2):
        with pytest.raises(ValidationError, match="experts move between GPUs: set ep to tp"):
            deployment(model, decode={"tp": 4, "ep": ep, "relocate": True})


def test_background_is_for_cpu_workers_of_its_role_only(model: Any) -> None:
    plan = resolve(deployment(model, decode={"background": True}))
    variables = {worker.role: worker.env.get("TOOLKIT_BACKGROUND") for worker in plan.workers}
    assert variables == {"prefill": None, "decode": "1"}
    plan = resolve(deployment(model, decode={"background": True}).on_device("cuda"))
    assert not any("TOOLKIT_BACKGROUND" in worker.env for worker in plan.workers)


def test_what_the_router_records_lies_beside_the_deployment_file(
    model: Any, tmp_path: Path
) -> None:
    made = deployment(model, router={"record": "traffic.jsonl"}, folder=tmp_path)
    router = resolve(made).router
    assert router is not None and router.config is not None
    assert router.config["record"] == str(tmp_path / "traffic.jsonl")
    assert "record" not in (present(resolve(deployment(model)).router).config or {})


def test_the_router_gets_the_limits_of_the_file_and_they_are_its_own(model: Any) -> None:
    defaults = {name: RouterConfig.model_fields[name].default for name in LIMITS}
    assert defaults.keys() <= Router.model_fields.keys()
    assert None not in defaults.values()
    asked = {name: not v if isinstance(v, bool) else v / 2 if name == "eject_share" else v + 1
             for name, v in defaults.items()}  # fmt: skip
    plan = resolve(deployment(model, router=asked))
    assert {name: present(present(plan.router).config)[name] for name in LIMITS} == asked
    assert RouterConfig.model_validate(present(plan.router).config)
    assert not set(LIMITS) & present(present(resolve(deployment(model)).router).config).keys()


def test_what_clients_may_do_is_what_the_file_says(model: Any) -> None:
    def allowed(**changes: Any) -> Any:
        return (present(resolve(deployment(model, **changes)).router).config or {}).get("allow")

    assert allowed() is None
    assert allowed(capture_experts=True) == ["capture"]
    assert allowed(router={"allow": ["labels", "priority"]}) == ["labels", "priority"]
    assert allowed(mode="plain", router={"allow": ["media"]}) == ["media"]
    assert allowed(decode={"args": {"enable_lora": True}}) == ["lora"]
    assert allowed(prefill={"args": {"--enable-custom-logit-processor": True}}) == [
        "logit_processor"
    ]
    assert allowed(decode={"args": {"enable-lora": False}}) is None
    with pytest.raises(ValidationError, match="none of capture, hidden_states"):
        deployment(model, router={"allow": ["everything"]})
    with pytest.raises(ValidationError, match="not proven right with prefill and decode apart"):
        deployment(model, router={"allow": ["media"]})


@pytest.mark.parametrize(("dispatch", "wait_s"), [("late", "60"), ("concurrent", None)])
def test_only_late_dispatch_expects_kv_within_a_minute(
    model: Any, dispatch: str, wait_s: Any
) -> None:
    plan = resolve(deployment(model, router={"dispatch": dispatch}))
    told = {w.role: w.env.get("SGLANG_DISAGGREGATION_WAITING_TIMEOUT") for w in plan.workers}
    assert told == {"prefill": None, "decode": wait_s}
