"""What clients are told of the workers: what they need, and not where anything lies."""

import json
from functools import partial
from typing import Any

import pytest

from tests.cpu_time import cpu_s
from tests.present import present
from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, post
from toolkit.router.about_workers import SHOWN, for_client
from toolkit.router.errors import ApiError, Retry
from toolkit.router.places import without_places
from toolkit.router.views import PROXIED

SECRETS = ("secret", "/srv", "10.77.0.1", "3456", "127.0.0.1", "launch_command", "internal_states")
PATH = "/v1/completions"


async def get(cluster: Cluster, path: str, at: str = "", key: str = "") -> tuple[int, Any, str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with cluster.session.get((at or cluster.url) + path, headers=headers) as answer:
        text = await answer.text()
        return answer.status, json.loads(text), text


async def test_a_client_sees_what_it_needs_and_the_admin_the_whole() -> None:
    async with Cluster(decodes=1) as cluster:
        for path in PROXIED:
            status, told, text = await get(cluster, path)
            assert status == 200, path
            assert not [secret for secret in SECRETS if secret in text], path
            if path == "/v1/models":
                (card,) = told["data"]
                assert card == {"id": "standin", "object": "model", "root": "standin",
                                "max_model_len": 8192}  # fmt: skip
            else:
                assert told["model_path"] == "standin"
                assert set(told) <= SHOWN[path]
        for path in ("/server_info", "/get_server_info"):
            status, told, _ = await get(cluster, path, cluster.admin)
            assert (status, told["port"]) == (200, 34567)


async def test_addresses_of_workers_are_the_admins_where_there_is_one() -> None:
    config = {"api_key_env": "C_KEY", "admin_key_env": "A_KEY"}
    env = {"C_KEY": "of-clients", "A_KEY": "of-admin"}
    async with Cluster(decodes=1, config=config, env=env) as cluster:
        for key, whole in (("of-clients", False), ("of-admin", True)):
            status, told, text = await get(cluster, "/workers", key=key)
            assert status == 200
            assert [row["name"] for row in told["workers"]] == ["prefill-0", "decode-0"]
            assert all(("url" in row) is whole for row in told["workers"])
            assert ("127.0.0.1" in text) is whole
            _, told, _ = await get(cluster, "/server_info", key=key)
            assert ("launch_command" in told) is whole


async def test_the_text_of_a_failure_names_no_place() -> None:
    """A worker's own 500, and a worker that cannot be reached."""
    said = (
        "Internal error at /srv/secret-folder/sglang/srt/managers/scheduler.py:120, "
        "tcp://10.77.0.1:34567 and node-7.secret-host:5000 refused; KV of 10.77.0.1:34568"
    )
    config = {"max_retries": 1, "no_worker_wait_s": 0.0, "rerun_wait_s": 0.0}
    async with Cluster(decodes=1, config=config) as cluster:
        for stream in (True, False):
            body = bodies(2, stream=stream, fail_status=500, fail_message=said)[PATH]
            status, raw = await post(cluster, PATH, body)
            assert status == 500
            assert b"Internal error at (hidden):120" in raw
            assert not [secret for secret in SECRETS if secret.encode() in raw], raw
            # What a client did wrong is said as SGLang says it.
            wrong = bodies(2, stream=stream, fail_status=400, fail_message=said)[PATH]
            assert said.encode() in (await post(cluster, PATH, wrong))[1]
    refused = "cannot connect ([Errno 111] Connect call failed ('127.0.0.1', 34567))"
    assert "34567" in str(Retry("decode-0", refused))  # the log's
    told = Retry("decode-0", refused).answer
    assert told.message == (
        "Worker decode-0 failed and no attempt is left: "
        "cannot connect ([Errno 111] Connect call failed (hidden))"
    )


@pytest.mark.parametrize("told", [b"", b"[]", b"7", b"\xff", b"[" * 5000])
def test_an_answer_that_is_no_object_is_not_passed_on(told: bytes) -> None:
    assert for_client("/server_info", 200, told) is None
    assert for_client("/v1/models", 500, told) is None


def test_odd_answers_of_a_worker_show_nothing_odd() -> None:
    assert json.loads(present(for_client("/v1/models", 200, b'{"data": {"x": 1}}'))) == {
        "object": "list", "data": []
    }  # fmt: skip
    odd = b'{"error": {"message": ["/srv/secret/x"], "port": 7}}'
    assert json.loads(present(for_client("/model_info", 404, odd))) == {
        "error": {"message": "['(hidden)']"}
    }


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("open('/var/lib/x.json')", "open('(hidden)')"),
        ("see http://10.0.0.1:80/metrics.", "see (hidden)"),
        ("[fd00::7]:31000 refused", "(hidden) refused"),
        ("Connect call failed ('::1', 31000, 0, 0)", "Connect call failed (hidden)"),
        ("localhost:31000: no", "(hidden): no"),
        ("/v1/chat/completions took 12.5 s and/or 1/2 of it", None),
        ('{"code":503,"message":"at 12:30: 5 of 7 ranks"}', None),
        ("version 0.5.21 of std::vector", None),
    ],
)
def test_what_is_a_place(text: str, left: str | None) -> None:
    found = without_places(text.encode())
    assert found is not None
    assert found.decode() == (text if left is None else left)


def test_long_texts_and_hostile_ones_are_looked_through_in_linear_time() -> None:
    """Growth, not seconds: four times the text may take some four times as long."""
    for unit in ("/a", "a/", ":a", "a:", "::", "1.", "a-", "/a=", "('", "[a", "http:/", "1.1.1.1"):
        times = []
        for size in (8_000, 32_000):
            text = (unit * size)[:size].encode()
            times.append(cpu_s(partial(without_places, text)))
        assert times[1] < 10 * times[0] + 0.05, unit
    assert without_places(b"x" * 70_000) is None
    assert ApiError(500, "x", raw=b"/srv/x/y" + b"x" * 70_000).raw is None
