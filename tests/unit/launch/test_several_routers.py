"""Several routers over the same workers: in the plan, and started, watched and ended."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.ports import free_port
from tests.present import present
from tests.unit.launch.stand_ins import deployment, routed, tiny_model
from tests.unit.settings.written import problems_of
from toolkit.cli.main import app
from toolkit.contract.variables import ROUTER_NAME_VARIABLE, ROUTER_RECORD_VARIABLE
from toolkit.launch import claims, contents, drain, readiness, show, trees
from toolkit.launch.checks import possible
from toolkit.launch.checks.open_ports import firewall, open_ports
from toolkit.launch.errors import LaunchError
from toolkit.launch.operate import Operator
from toolkit.launch.plan import RUN_DIR, Plan
from toolkit.launch.poison import Poison
from toolkit.launch.resolve import resolve
from toolkit.launch.router_admin import NoAnswer
from toolkit.launch.running import Running, running
from toolkit.launch.runs import Run
from toolkit.launch.started import started
from toolkit.launch.state import read_state
from toolkit.policies.support.rotation import seed_of
from toolkit.settings.processes import Restart
from toolkit.settings.router.config import RouterConfig

HOSTS = {"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.2"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def configs(plan: Plan) -> list[RouterConfig]:
    return [RouterConfig.model_validate(router.config) for router in plan.routers]


def test_each_has_ports_and_files_of_its_own_and_the_same_of_everything_else(
    model: Path, tmp_path: Path
) -> None:
    asked = {"routers": 3, "port": 21000, "admin_port": 21010, "seed": 5, "relays": "auto",
             "record": "traffic.jsonl", "record_decisions": "made"}  # fmt: skip
    plan = resolve(deployment(model, router=asked, folder=tmp_path))
    names = ["router-0", "router-1", "router-2"]
    assert [router.name for router in plan.routers] == names
    assert [router.port for router in plan.routers] == [21000, 21001, 21002]
    assert plan.entry_urls == tuple(f"http://127.0.0.1:{port}" for port in (21000, 21001, 21002))
    assert plan.entry_url == plan.entry_urls[0]
    made = configs(plan)
    assert [config.admin_port for config in made] == [21010, 21011, 21012]
    assert [config.number for config in made] == [0, 1, 2]
    assert [config.policy_seed for config in made] == [seed_of(5, number) for number in range(3)]
    assert {(config.seed, config.routers_here, config.relays) for config in made} == {
        (5, 3, "auto")
    }, "centroids are fitted alike everywhere"
    written = [f"{tmp_path}/traffic.{name}.jsonl" for name in names]
    assert [config.record for config in made] == written
    assert [config.record_decisions for config in made] == [f"{tmp_path}/made.{n}" for n in names]
    files = contents.fixed(plan)
    for router, config in zip(plan.routers, made, strict=True):
        assert router.command[-1] == f"{RUN_DIR}/{router.file}"
        assert RouterConfig.model_validate(files[router.file]) == config
    assert [each["name"] for each in files["plan.json"]["routers"]] == names
    listens = [(each.who, each.ports) for each in open_ports(plan) if each.who in names]
    assert listens[:2] == [("router-0", "21000"), ("router-0", "21010")] and len(listens) == 6
    assert {(port, name) for port, _, name in claims._ports(plan) if "router" in name} == {
        *((21000 + number, name) for number, name in enumerate(names)),
        *((21010 + number, f"{name}.admin_port") for number, name in enumerate(names)),
    }
    shown = show.commands(plan)
    assert all(f"# {name}\n" in shown and f"{name}.json" in shown for name in names)


def test_free_ports_are_different_ones(model: Path) -> None:
    plan = resolve(deployment(model, router={"routers": 2}))
    ports = [port for config in configs(plan) for port in (config.port, config.admin_port)]
    assert len(set(ports)) == 4 and not possible.ports(plan)


def test_decisions_that_the_environment_asks_for_go_to_different_files(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROUTER_RECORD_VARIABLE, "/tmp/asked")
    several = resolve(deployment(model, router={"routers": 2}))
    asked = [router.env[ROUTER_RECORD_VARIABLE] for router in several.routers]
    assert asked == ["/tmp/asked.router-0", "/tmp/asked.router-1"]
    (alone,) = resolve(deployment(model)).routers
    assert ROUTER_RECORD_VARIABLE not in alone.env and alone.file == "router.json"


def test_none_has_the_name_of_another(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else workers would take them for one, also where somebody launches from a router's shell."""
    monkeypatch.setenv(ROUTER_NAME_VARIABLE, "the-one")
    plan = resolve(deployment(model, router={"routers": 2}))
    routers = [m for m in started(plan, tmp_path, tmp_path, ()) if m.role == "router"]
    assert len(routers) == 2
    assert not [m for m in routers if ROUTER_NAME_VARIABLE in m.environment("run")]


def test_each_host_starts_its_own(model: Path) -> None:
    router = {"node": ["b", "a"], "host": "0.0.0.0", "port": 8000, "api_key_env": "KEY",
              "routers": 3}  # fmt: skip
    described = deployment(
        model,
        hosts=HOSTS,
        insecure=True,
        router=router,
        prefill={"hosts": ["a"]},
        decode={"hosts": ["b"]},
    )
    plans = [resolve(described, host) for host in "ab"]
    for host, plan in zip("ab", plans, strict=True):
        assert [router.node for router in plan.routers] == ["b", "a", "b"]
        assert [router.port for router in plan.routers] == [8000, 8000, 8001]
        assert [router.url for router in plan.routers] == [
            "http://10.0.0.2:8000", "http://10.0.0.1:8000", "http://10.0.0.2:8001",
        ]  # fmt: skip
        assert [config.routers_here for config in configs(plan)] == [2, 1, 2]
        mine = [router.name for router in plan.own_routers]
        assert mine == {"a": ["router-1"], "b": ["router-0", "router-2"]}[host]
        assert present(plan.router).local and plan.entry_url == present(plan.router).url
        assert not [each for each in possible.ports(plan) if "twice" in each.what]
        assert all("8000" not in rule for rule in firewall(plan)), "clients reach it"
    workers = [[(w.name, w.same_run) for w in config.workers] for config in configs(plans[0])]
    assert workers[0] == [("prefill-0", False), ("decode-0", True)]
    assert workers[1] == [("prefill-0", True), ("decode-0", False)]
    assert [config.admin_port for config in configs(plans[0])] == [
        config.admin_port for config in configs(plans[1])
    ]


def test_plain_workers_park_nothing_that_routers_would_share(model: Path) -> None:
    plan = resolve(deployment(model, mode="plain", router={"routers": 9}))
    assert len(plan.routers) == 9


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("router: {routers: 0}", "greater than or equal to 1"),
        ("router: {routers: 65}", "less than or equal to 64"),
        ("router: {kind: sglang, routers: 2}", "router: sglang cannot do that"),
        ("router: {kind: sglang, node: [a, b], host: 127.0.0.1}", "name one host"),
        ("router: {node: []}", "names no host"),
        ("router: {node: [a, b, a], host: 127.0.0.1}", "names a twice"),
        ("router: {node: [a, b], routers: 1}", "name fewer, or leave routers out"),
        ("router: {node: [a, b], host: 10.0.0.1, open: true}", "say 0.0.0.0 (or ::)"),
        ("router: {routers: 2, port: 65535}", "port 65535: 2 on a host do not fit"),
        ("router: {routers: 3, parked_per_prefill: 2}", "cannot share parked_per_prefill 2"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (problem,) = problems_of(tmp_path, text)
    assert "router" in problem and says in problem


def test_a_host_that_is_not_there_is_named_with_those_that_are(model: Path) -> None:
    described = deployment(model, hosts=HOSTS, router={"node": ["a", "c"]})
    with pytest.raises(LaunchError) as caught:
        resolve(described, "a")
    assert str(caught.value) == "router.node: no host 'c'\n    -> name one of hosts: a, b"


def several() -> Plan:
    """Two stand-in workers and two real routers in front of both."""
    made = routed(free_port(), free_port())
    port = free_port()
    second = replace(made.workers[0], name="worker-1", url=f"http://127.0.0.1:{port}", port=port)
    second = replace(second, command=(*second.command[:-1], str(port)))
    workers, first = (made.workers[0], second), made.routers[0]
    entries = [{"name": w.name, "role": "plain", "url": w.url, "same_run": True} for w in workers]
    routers = []
    for number in range(2):
        name, port = f"router-{number}", free_port()
        own = {"port": port, "admin_port": free_port(), "number": number, "workers": entries}
        routers.append(
            replace(
                first, name=name, port=port, url=f"http://127.0.0.1:{port}",
                config={**present(first.config), **own},
                command=(*first.command[:-1], f"{RUN_DIR}/{name}.json"),
            )
        )  # fmt: skip
    restart = Restart(first_delay=0.05, max_delay=0.05)
    return replace(made, workers=workers, routers=tuple(routers), restart=restart)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(several(), tmp_path_factory.mktemp("run")) as running_now:
        yield running_now
        run_id = running_now.supervisor.run_id
    assert not trees.members({}, run_id), "the stop leaves nothing"
    for router in running_now.plan.routers:
        assert readiness.get(router.url + "/health")[0] == 0


def operator(up: Running) -> Operator:
    return Operator(Run(up.run_dir, read_state(up.run_dir), 0.0))


def held(up: Running, worker: str) -> list[bool]:
    said = [json.loads(readiness.get(f"{url}/workers")[1]) for url in up.plan.entry_urls]
    return [row["held"] for each in said for row in each["workers"] if row["name"] == worker]


def test_both_are_listed_and_orders_go_to_both(up: Running) -> None:
    rows = read_state(up.run_dir)["routers"]
    assert [row["name"] for row in rows] == ["router-0", "router-1"]
    assert [row["url"] for row in rows] == list(up.plan.entry_urls)
    assert {Path(row["log"]).name for row in rows} == {"router-0.log", "router-1.log"}
    at = operator(up)
    assert [router.name for router in at.routers] == ["router-0", "router-1"]
    assert at.drain("worker-0", 5.0).left == 0
    assert held(up, "worker-0") == [True, True] and held(up, "worker-1") == [False, False]
    at.restart("worker-0")
    at.undrain("worker-0")
    assert held(up, "worker-0") == [False, False]
    with pytest.raises(LaunchError, match="no request 'nobody' runs here"):
        at.migrate({"rid": "nobody"})
    found = Poison(up.plan).ask()
    assert found == {}
    shown = CliRunner().invoke(app, ["status", "--json", "--run", str(up.run_dir)])
    told = json.loads(shown.output)
    assert [p["name"] for p in told["processes"]][-2:] == ["router-0", "router-1"]
    assert set(told["routers"]) == {"router-0", "router-1"}
    table = CliRunner().invoke(app, ["status", "--run", str(up.run_dir)]).output
    assert all(str(router.port) in table for router in up.plan.routers)


def test_an_order_goes_to_one_that_answers_and_by_it_to_all(up: Running) -> None:
    at = operator(up)
    dead = replace(at.routers[0], url=f"http://127.0.0.1:{free_port()}")
    at.routers[0] = dead
    assert at.drain("worker-0", 5.0).empty
    assert held(up, "worker-0") == [True, True]
    assert at.undrain("worker-0") == {}
    assert held(up, "worker-0") == [False, False]
    at.routers[1] = dead
    with pytest.raises(NoAnswer):
        at.drain("worker-0", 5.0)
    assert at.starts("worker-0") and not at.starts("worker-9")
    with pytest.raises(LaunchError, match="no worker of this run"):
        at.check_own("worker-9")


def test_where_routers_do_not_hear_of_each_other_each_is_told(tmp_path: Path) -> None:
    """Workers that are no toolkit's say nothing of routers, and take no notices."""
    made = several()
    workers = [replace(each, command=(*each.command, "--no-events")) for each in made.workers]
    entries = [entry | {"same_run": False} for entry in present(made.routers[0].config)["workers"]]
    routers = [
        replace(each, config={**present(each.config), "workers": entries}) for each in made.routers
    ]  # workers that say nothing are of no run
    silent = replace(made, workers=tuple(workers), routers=tuple(routers))
    with running(silent, tmp_path) as up:
        at = operator(up)
        assert at.drain("worker-0", 5.0).empty
        assert held(up, "worker-0") == [True, True]
        assert at.undrain("worker-0") == {}
        assert held(up, "worker-0") == [False, False]


def test_one_that_is_killed_comes_back_on_its_port_and_the_other_one_serves_on(
    up: Running,
) -> None:
    other, dying = up.plan.routers
    processes = up.supervisor.fleet.processes
    before = processes[other.name].pid
    os.kill(present(processes[dying.name].pid), signal.SIGKILL)
    for _ in range(20):
        assert readiness.get(f"{other.url}/readiness")[0] == 200
    up.wait_ready(dying.name, restarts=1)
    assert readiness.get(f"{dying.url}/readiness")[0] == 200
    assert (processes[other.name].pid, processes[other.name].restarts) == (before, 0)


def test_a_drain_asks_all_that_answer(up: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int | None] = {"router-0": 2, "router-1": None}

    def left(router: Any, run_id: str) -> int:
        found = asked[router.name]
        if found is None:
            raise readiness.NotReady("it is being started")
        return found

    monkeypatch.setattr(drain, "_left", left)
    assert drain.left(up.plan, up.supervisor.run_id) == 2
    asked["router-1"] = 3
    assert drain.left(up.plan, up.supervisor.run_id) == 5
    asked |= {"router-0": None, "router-1": None}
    with pytest.raises(readiness.NotReady):
        drain.left(up.plan, up.supervisor.run_id)
