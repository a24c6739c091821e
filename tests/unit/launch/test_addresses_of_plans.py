"""Addresses of a deployment file in the plan: IPv6 in brackets, and nothing that would not work."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError

from tests.unit.launch.stand_ins import deployment, tiny_model
from toolkit.launch.checks.open_ports import firewall, open_ports
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.settings.router.config import RouterConfig

KEYED = {"api_key_env": "SOME_KEY"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def _plan(model: Path, address: str, host: str, **router: object) -> Plan:
    made = {"hosts": {"here": {"address": address}}, "router": {"host": host, **router}}
    return resolve(deployment(model, **made), "here")


def test_a_deployment_on_ipv6_has_brackets_wherever_a_port_follows(model: Path) -> None:
    plan = _plan(model, "::1", "::1")
    assert plan.router is not None and plan.router.config is not None
    urls = [plan.entry_url, plan.router.admin_url or ""]
    urls += [each for w in plan.workers for each in (w.url or "", w.health_url)]
    for url in urls:
        assert urlsplit(url).hostname == "::1" and urlsplit(url).port, url
    for worker in plan.workers:
        at = worker.argv.index("--host")
        assert worker.argv[at + 1] == worker.env["SGLANG_HOST_IP"] == "::1"
        assert worker.env["MC_USE_IPV6"] == "1"
    config = RouterConfig.model_validate(plan.router.config)
    assert (config.host, config.workers[0].host) == ("::1", "::1")
    assert {port.address for port in open_ports(plan)} == {"::1"} and not firewall(plan)


def test_ranks_meet_at_an_address_in_brackets(model: Path) -> None:
    shape = {"tp": 2, "dp": 2, "dp_attention": True}
    made = {"hosts": {"here": {"address": "fd00::7"}}, "decode": shape}
    plan = resolve(deployment(model, **made), "here")
    (decode,) = [w for w in plan.workers if w.role == "decode"]
    at = decode.argv.index("--dist-init-addr")
    assert decode.argv[at + 1] == f"[fd00::7]:{decode.dist_port}"
    assert any("ip6 saddr { fd00::7 }" in rule for rule in firewall(plan))
    assert not any("ip saddr" in rule for rule in firewall(plan))


@pytest.mark.parametrize(
    ("address", "host", "asked"),
    [
        ("10.0.0.1", "0.0.0.0", "10.0.0.1"),
        ("10.0.0.1", "::", "::1"),  # it hears IPv6 only: nobody would answer at 10.0.0.1
        ("fd00::1", "0.0.0.0", "127.0.0.1"),
        ("fd00::1", "::", "fd00::1"),
        ("127.0.0.1", "[::1]", "::1"),
    ],
)
def test_the_launcher_asks_its_router_where_it_listens(
    model: Path, address: str, host: str, asked: str
) -> None:
    assert urlsplit(_plan(model, address, host, **KEYED).entry_url).hostname == asked


@pytest.mark.parametrize("wrong", ["http://h", "h:80", "[::1]:80", "a b", "", "h/x"])
def test_a_host_with_something_beside_it_is_refused(model: Path, wrong: str) -> None:
    with pytest.raises(ValidationError, match="name or an address alone"):
        deployment(model, router={"host": wrong})
    with pytest.raises(ValidationError, match="name or an address alone"):
        deployment(model, hosts={"here": {"address": wrong}})


def test_pages_are_named_by_origins(model: Path) -> None:
    plan = resolve(deployment(model, router={"cors": ["https://APP.example", "*"]}))
    assert plan.router is not None and plan.router.config is not None
    assert plan.router.config["cors"] == ["https://app.example", "*"]
    assert RouterConfig.model_validate(plan.router.config).cors == ("https://app.example", "*")
    plain = resolve(deployment(model)).router
    assert plain is not None and "cors" not in (plain.config or {})
    wrong = ("app.example", "https://a.example/", "https://a/x", "http://u@a", "null", "ftp://a")
    for told in wrong:
        with pytest.raises(ValidationError, match="is no origin"):
            deployment(model, router={"cors": [told]})


def test_sglangs_router_is_given_brackets_as_well(model: Path) -> None:
    made = {"hosts": {"here": {"address": "::1"}}}
    own = deployment(model, **made, router={"kind": "sglang", "host": "::1"})
    plan = resolve(own, "here")
    assert plan.router is not None
    told = [each for each in plan.router.command if each.startswith("http://")]
    assert told and all(each.startswith("http://[::1]:") for each in told)
