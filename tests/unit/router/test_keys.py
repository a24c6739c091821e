"""Client keys and the admin's, and the two ports, of a real router process over stand-ins."""

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, post, run
from toolkit.keys import KeysError, client_keys, one_key
from toolkit.router.keys import Keyring
from toolkit.settings.router.config import ConfigError, RouterConfig

PATH = "/v1/completions"
ADMIN = ("/admin/policy", "/admin/drain", "/admin/refit")
WORKER = {"name": "w", "role": "plain", "url": "http://127.0.0.1:1"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def keys_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_client_keys_open_no_admin_endpoint(tmp_path: Path) -> None:
    path = keys_file(tmp_path, "# who\nalice: key-of-alice\n\nkey-of-nobody\n")
    config = {"api_keys_file": str(path), "api_key_env": "C_KEY", "admin_key_env": "A_KEY"}
    env = {"C_KEY": "key-of-bob", "A_KEY": "key-of-admin"}

    async def check() -> None:
        async with Cluster(config=config | {"admin_port": 0}, env=env) as cluster:
            cluster.admin_port = cluster.port
            for key in ("key-of-alice", "key-of-nobody", "key-of-bob", "key-of-admin"):
                assert (await post(cluster, PATH, bodies(2)[PATH], headers=bearer(key)))[0] == 200
            for wrong in ({}, bearer("key-of-alic"), bearer("alice: key-of-alice"), bearer("")):
                assert (await post(cluster, PATH, bodies(2)[PATH], headers=wrong))[0] == 401
            # Anthropic's clients have a header of their own for it, and read another error.
            theirs = {"x-api-key": "key-of-bob"}
            assert (await post(cluster, PATH, bodies(2)[PATH], headers=theirs))[0] == 200
            status, said = await post(cluster, "/v1/messages", {}, headers={"x-api-key": "no"})
            assert (status, json.loads(said)["error"]["type"]) == (401, "authentication_error")
            status, said = await post(cluster, "/v1/messages", {}, headers=theirs)
            assert (status, json.loads(said)["error"]["type"]) == (400, "invalid_request_error")
            everything = {"abort_all": True}
            for path in ADMIN:
                assert (await post(cluster, path, {}, headers=bearer("key-of-bob")))[0] == 403, path
                assert (await post(cluster, path, {}))[0] == 401, path
            aborted = await post(
                cluster, "/abort_request", everything, headers=bearer("key-of-alice")
            )
            assert aborted[0] == 403
            admin = bearer("key-of-admin")
            assert (await post(cluster, "/abort_request", everything, headers=admin))[0] == 200
            assert (await post(cluster, "/admin/drain", {}, headers=admin))[0] == 200
            mine = bearer("key-of-bob")
            assert (await post(cluster, PATH, bodies(2)[PATH], headers=mine))[0] == 503
            assert (await post(cluster, "/admin/drain", {"on": False}, headers=admin))[0] == 200
            assert (await post(cluster, PATH, bodies(2)[PATH], headers=mine))[0] == 200
            assert (await post(cluster, "/admin/drain", {"on": 0}, headers=admin))[0] == 400
            log = cluster.log.read_text()
            assert not any(key in log for key in ("key-of-alice", "key-of-bob", "key-of-admin"))

    # The harness reads /workers at the admin's port, which this router does not have.
    with pytest.MonkeyPatch.context() as patch:

        async def state(cluster: Cluster) -> Any:
            url = cluster.url + "/workers"
            async with cluster.session.get(url, headers=bearer("key-of-admin")) as answer:
                return await answer.json()

        patch.setattr(Cluster, "state", state)
        run(check())


async def test_without_an_admin_key_only_the_loopback_port_takes_orders() -> None:
    async with Cluster() as cluster:
        for path in ADMIN:
            status, body = await post(cluster, path, {})
            assert status == 403, path
            assert str(cluster.admin_port).encode() in body
        assert (await post(cluster, "/abort_request", {"abort_all": True}))[0] == 403
        assert (await post(cluster, "/abort_request", {"rid": "nobody's"}))[0] == 200
        assert (await post(cluster, PATH, bodies(1)[PATH]))[0] == 200
        state = await cluster.state()
        assert state["draining"] is False
        assert state["admin"] == cluster.admin
        assert (await post(cluster, "/admin/drain", {}, admin=True))[0] == 200
        assert (await cluster.state())["draining"] is True
        # No generation there, which would ask for no client key.
        assert (await post(cluster, PATH, bodies(1)[PATH], admin=True))[0] == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "rebound.example.org"},
        {"Host": "127.0.0.1.example.org:80"},
    ],
    ids=str,
)
async def test_a_web_page_gives_no_orders(headers: dict[str, str]) -> None:
    async with Cluster(decodes=1) as cluster:
        assert (await post(cluster, "/admin/drain", {}, admin=True, headers=headers))[0] == 403
        assert (await cluster.state())["draining"] is False
        for host in ("localhost:1", "[::1]:5", "127.0.0.1"):
            status, _ = await post(
                cluster, "/admin/drain", {"on": False}, admin=True, headers={"Host": host}
            )
            assert status == 200


async def test_a_client_aborts_only_its_own_requests(tmp_path: Path) -> None:
    path = keys_file(tmp_path, "alice: key-of-alice\nbob: key-of-bob\n")
    config = {"api_keys_file": str(path)}
    async with Cluster(worker_args=["--token-ms", "20"], config=config) as cluster:
        body = {
            "text": "hello",
            "sampling_params": {"max_new_tokens": 60},
            "rid": "the-same",
            "stream": False,
        }
        mine = asyncio.create_task(post(cluster, "/generate", body, headers=bearer("key-of-alice")))
        await cluster.until(lambda s: s["running"] == 1)
        order = {"rid": "the-same"}
        assert (await post(cluster, "/abort_request", order, headers=bearer("key-of-bob")))[
            0
        ] == 200
        assert (await mine)[0] == 200
        mine = asyncio.create_task(post(cluster, "/generate", body, headers=bearer("key-of-alice")))
        await cluster.until(lambda s: s["running"] == 1)
        await post(cluster, "/abort_request", order, headers=bearer("key-of-alice"))
        assert (await mine)[0] == 499


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o606])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = keys_file(tmp_path, "a-key\n", mode)
    with pytest.raises(KeysError, match="chmod 600"):
        client_keys(str(path))


def test_a_file_of_a_group_may_be_read_by_it(tmp_path: Path) -> None:
    path = keys_file(tmp_path, "a-key\n", 0o640)
    assert client_keys(str(path)) == [("keys:1", "a-key")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no key"),
        ("# only this\n", "holds no key"),
        ("two words\n", "keys:1 is neither"),
        ("one\nbad name!: x y\n", "keys:2 is neither"),
        ("one\nother: one\n", "the same key twice"),
        ("k\u00e9y\n", "is not ASCII"),
    ],
)
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = keys_file(tmp_path, "")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KeysError, match=message) as caught:
        client_keys(str(path))
    assert "two words" not in str(caught.value), "an error must not say what may be a key"


def test_the_admin_key_is_one(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="cannot read"):
        one_key(None, str(tmp_path / "none"))
    with pytest.raises(KeysError, match="holds 2 keys"):
        one_key(None, str(keys_file(tmp_path, "one\ntwo\n")))
    os.environ.pop("NO_SUCH_KEY", None)
    with pytest.raises(KeysError, match="NO_SUCH_KEY is empty"):
        one_key("NO_SUCH_KEY", None)
    with pytest.raises(KeysError, match="one of the client keys"):
        Keyring([("a", "same")], "same")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "router.example.org"])
def test_an_open_port_needs_to_be_said(host: str) -> None:
    with pytest.raises(ValueError, match="open: true"):
        RouterConfig.model_validate({"host": host, "workers": [WORKER]})
    for keys in ({"open": True}, {"api_key_env": "K"}, {"api_keys_file": "/k"}):
        RouterConfig.model_validate({"host": host, "workers": [WORKER], **keys})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_loopback_may_be_open(host: str) -> None:
    RouterConfig.model_validate({"host": host, "workers": [WORKER]})


def test_a_configuration_with_wrong_ports() -> None:
    for wrong in (
        {"admin_key_env": "A", "admin_key_file": "/a"},
        {"port": 5, "admin_port": 5},
        {"api_keys_file": "relative"},
    ):
        with pytest.raises(ValueError, match=r"admin_key_env|admin_port|absolute"):
            RouterConfig.model_validate({"workers": [WORKER], **wrong})


def test_a_missing_key_ends_the_router_with_a_message() -> None:
    from toolkit.router.app import RouterApp

    os.environ.pop("NO_SUCH_KEY", None)
    config = RouterConfig.model_validate({"workers": [WORKER], "admin_key_env": "NO_SUCH_KEY"})
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is empty"):
        RouterApp(config)
