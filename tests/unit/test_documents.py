"""The documents are complete: every key and option has a meaning, every page builds."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from docs import bounds, reference
from tests.benchmarks.shared.common import record
from toolkit.policies import POLICIES, PUBLISHED
from toolkit.router.app import RouterApp
from toolkit.router.guard import ADMIN_PORT_PATHS
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.worker import WorkerConfig
from toolkit.settings.table import keys as keys_of_deployments

ROOT = Path(__file__).resolve().parents[2]


def test_every_key_of_a_deployment_file_has_a_meaning() -> None:
    lacking = [key.path for key in keys_of_deployments() if not key.meaning]
    assert not lacking, f"describe where they are declared, in toolkit/settings: {lacking}"


def test_every_option_of_every_command_has_a_meaning() -> None:
    lacking = [
        (name, option.name)
        for name, (_, options) in reference.commands().items()
        for option in options
        if not option.meaning
    ]
    assert not lacking


@pytest.mark.slow
def test_the_site_builds_and_has_every_key_option_policy_and_result(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-f", "docs/mkdocs.yml"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    keys = (tmp_path / "keys.html").read_text()
    shown = {key.path.split(".", 1)[-1] for key in keys_of_deployments()}
    assert [name for name in sorted(shown) if f"<code>{name}</code>" not in keys] == []
    commands = (tmp_path / "cli.html").read_text()
    for _, options in reference.commands().values():
        assert [o.name for o in options if f"<code>{o.name}</code>" not in commands] == []
    policies = (tmp_path / "policies.html").read_text()
    assert [name for name in POLICIES if f'id="{name}"' not in policies] == []
    assert [name for name in PUBLISHED if f"<code>{name}</code>" not in policies] == []
    assert (tmp_path / "results.html").read_text().count("<tr>") > len(reference.records())
    for page in tmp_path.glob("*.html"):
        assert 'src="http' not in page.read_text(), f"{page.name} fetches from elsewhere"
        assert 'rel="stylesheet" href="http' not in page.read_text()


def test_a_recorded_benchmark_can_be_shown(tmp_path: Path) -> None:
    record("fit", {"fit_1000_s": 0.65}, "tests.benchmarks.fit", tmp_path, "abc1234")
    line = json.loads((tmp_path / "fit.jsonl").read_text())
    assert line["figures"] == {"fit_1000_s": 0.65} and line["command"] == "tests.benchmarks.fit"
    assert set(line) == {"benchmark", "figures", "command", "commit", "machine", "date"}


def test_nested_figures_are_lines_of_their_own() -> None:
    ratio = {"value": 0.9, "low": 0.8, "high": 1.0, "pairs": 3}
    one = {"value": 0.7, "low": None, "high": None}
    found = {"a": 1, "pool": {"eldr": {"p50": ratio, "p99": one}, "none": {}}, "b": [1, {"c": 2}]}
    assert list(reference.figures(found)) == [
        ("", "a 1, b 1; c 2"),
        ("pool.eldr", "p50 0.9 (0.8 to 1.0), p99 0.7"),
    ]


def test_what_was_tried_is_a_table_with_its_reasons_below(monkeypatch: pytest.MonkeyPatch) -> None:
    first = {"a": {"plain": "refused: no kernel", "PD": "-"}, "b": {"plain": "yes; note: slow"}}
    later = {"a": {"plain": "refused: no kernel, not yet", "PD": "yes"}}
    made = [{"benchmark": "tried", "figures": found} for found in (first, later)]
    monkeypatch.setattr(reference, "records", lambda: made)
    assert reference.tried("tried").splitlines() == [
        "| architecture | plain | PD |",
        "| --- | --- | --- |",
        "| `a` | refused (1) | yes |",
        "| `b` | yes (2) | - |",
        "",
        "1. no kernel, not yet",
        "2. note: slow",
    ]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_bound_has_a_meaning_and_a_default() -> None:
    rows = bounds.rows()
    assert len(rows) > 30
    lacking = [name for name, _, _, meaning in rows if not meaning]
    assert not lacking, f"describe where they are declared, in toolkit/settings: {lacking}"
    assert ("`max_body_mib`", "64", "`router.max_body_mib`", "the largest body, MiB") in rows


def test_endpoints_want_the_keys_that_the_page_says() -> None:
    """Of a real router with client keys and an admin key: who is let in, and who is not."""

    async def check() -> None:
        keys = {"none": "", "client": "of-clients", "admin": "of-admin"}
        worker = WorkerConfig(name="w", role="plain", url="http://127.0.0.1:1")
        config = RouterConfig(
            workers=(worker,), api_key_env="C_KEY", admin_key_env="A_KEY", connect_timeout_s=0.2
        )
        router = RouterApp(config)
        async with TestServer(router.app()) as server, aiohttp.ClientSession() as http:
            for each in bounds.endpoints():
                url = server.make_url(re.sub(r"{\w+}", "x", each.path))
                opens = []
                for who, key in keys.items():
                    headers = {"Authorization": f"Bearer {key}"} if key else {}
                    async with http.request(each.method, url, headers=headers, json={}) as answer:
                        if answer.status not in (401, 403):
                            opens.append(who)
                wanted = {"none": [*keys], "client": ["client", "admin"], "admin": ["admin"]}
                assert opens == wanted[each.key], (each, opens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("C_KEY", "of-clients")
        patch.setenv("A_KEY", "of-admin")
        asyncio.run(check())


def test_the_admin_port_has_what_the_page_says() -> None:
    at_port = {each.path for each in bounds.endpoints() if each.at_admin_port}
    assert at_port == ADMIN_PORT_PATHS


def test_what_is_promised_names_what_is_there() -> None:
    promised = (ROOT / "SECURITY.md").read_text()
    for word in ("insecure: true", "isolate: true", "open: true", "trust_remote_code"):
        assert word in promised
    keys = {key.path.rsplit(".", 1)[-1] for key in keys_of_deployments()}
    assert {"insecure", "isolate", "open", "trust_remote_code"} <= keys
    for path in re.findall(r"`(docs/[\w/.]+)`", promised):
        assert (ROOT / path).is_file(), path
