"""Which requests a prefill worker answers by itself, and that no decode worker hears of them."""

import re
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected, idle, post, prompt_of, text_of
from toolkit.contract.prefill_only import HOST
from toolkit.policies.base import RequestView
from toolkit.router.one_token import is_one
from toolkit.router.request import Endpoint, SubRequest

pytestmark = pytest.mark.touched("router")

PATHS = list(bodies(1))
ALONE: dict[str, Any] = {"role_args": {"prefill": ["--prefill-only", "--record"]}}


def sub_request(endpoint: Endpoint, body: dict[str, Any]) -> SubRequest:
    return SubRequest(endpoint, "/", body, "r", 0, False, RequestView(prompt_tokens=1))


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("completions", {"max_tokens": 1}),
        ("completions", {"max_tokens": 1, "echo": True, "logprobs": 3, "stop": "x"}),
        ("chat", {"max_completion_tokens": 1}),
        ("chat", {"max_tokens": 1, "max_completion_tokens": None, "tools": [{}]}),
        ("chat", {"max_tokens": 1, "max_completion_tokens": 1}),
        ("generate", {"sampling_params": {"max_new_tokens": 1}, "return_logprob": True}),
    ],
)
def test_one_token_is_prefills(endpoint: Endpoint, body: dict[str, Any]) -> None:
    assert is_one(sub_request(endpoint, body))


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("completions", {}),
        ("completions", {"max_tokens": 2}),
        ("completions", {"max_tokens": 0}),
        ("completions", {"max_tokens": True}),
        ("completions", {"max_tokens": 1.0}),
        ("completions", {"max_completion_tokens": 1}),
        ("chat", {"max_tokens": 1, "max_completion_tokens": 5}),
        ("chat", {"max_tokens": 5, "max_completion_tokens": 1}),
        ("generate", {"max_tokens": 1}),
        ("generate", {"sampling_params": None}),
        ("generate", {"sampling_params": [{"max_new_tokens": 1}]}),
        ("generate", {"sampling_params": {"max_new_tokens": 1, "beam_width": 2}}),
    ],
)
def test_more_or_less_is_not(endpoint: Endpoint, body: dict[str, Any]) -> None:
    assert not is_one(sub_request(endpoint, body))


def test_what_needs_a_decode_worker_is_not() -> None:
    resumed, captured = (sub_request("completions", {"max_tokens": 1}) for _ in range(2))
    resumed.resume_ids, captured.capture = [3], True
    assert not is_one(resumed)
    assert not is_one(captured)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False])
async def test_prefill_answers_while_no_decode_worker_is_there(path: str, stream: bool) -> None:
    async with Cluster(**ALONE) as cluster:
        for worker in cluster.workers:
            if worker.role == "decode":
                worker.kill()
        body = bodies(1, stream=stream)[path]
        status, raw = await post(cluster, path, body)
        assert status == 200
        if stream:
            assert text_of(path, raw) == expected(prompt_of(path), 1)
        [sent] = (await cluster.stats("prefill-0"))["bodies"]
        assert sent["bootstrap_host"] == HOST
        assert sent["bootstrap_room"]
        await cluster.until(idle)


async def test_without_the_patch_decode_answers() -> None:
    async with Cluster() as cluster:
        for path in PATHS:
            status, raw = await post(cluster, path, bodies(1)[path])
            assert (status, text_of(path, raw)) == (200, expected(prompt_of(path), 1))
        assert await _counted(cluster) == 0
        await cluster.until(idle)


async def test_more_tokens_are_decodes() -> None:
    async with Cluster(**ALONE) as cluster:
        for path in PATHS:
            for count in (1, 5, 1):
                status, raw = await post(cluster, path, bodies(count)[path])
                assert (status, text_of(path, raw)) == (200, expected(prompt_of(path), count))
        assert await _counted(cluster) == 2 * len(PATHS)
        await cluster.until(idle)


@pytest.mark.parametrize("path", PATHS)
async def test_a_prefill_that_dies_is_no_end(path: str) -> None:
    async with Cluster(prefills=2, **ALONE) as cluster:
        body = {**bodies(1)[path], "crash_role": "prefill"}
        status, raw = await post(cluster, path, body)
        assert (status, text_of(path, raw)) == (200, expected(prompt_of(path), 1))


async def _counted(cluster: Cluster) -> int:
    async with cluster.session.get(cluster.url + "/metrics") as answer:
        found = re.search(r"^toolkit_router_prefill_only_total (\S+)$", await answer.text(), re.M)
    assert found is not None
    return int(float(found[1]))
