"""Endpoints that a worker answers by running a prompt and nothing else."""

import json
from typing import Any

from tests.standin.cluster import Cluster
from tests.standin.worker import WHOLE
from tests.unit.router.cluster_calls import post

BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "m", "input": ["a", "b"], "bootstrap_room": 7, "toolkit": 1},
    "/v1/rerank": {"query": "a", "documents": ["b"], "top_n": 1},
    "/v1/score": {"query": "a", "items": ["b"], "label_token_ids": [1], "model": "m"},
    "/v1/classify": {"model": "m", "input": "a"},
    "/v1/messages/count_tokens": {"model": "m", "messages": [{"role": "user", "content": "a"}]},
}


async def test_plain_workers_get_them_without_what_is_the_router_s() -> None:
    async with Cluster(prefills=0, decodes=0, plains=2) as cluster:
        for path, body in BODIES.items():
            status, answer = await post(cluster, path, body)
            said = json.loads(answer)
            assert (status, said["path"]) == (200, path)
            if path == "/v1/messages/count_tokens":
                assert len(said["body"].pop("rid")) == 32
            assert said["body"] == {
                k: v for k, v in body.items() if k not in ("bootstrap_room", "toolkit")
            }
        # One worker gone: the other one answers.
        cluster.worker("plain-0").kill()
        for _ in range(4):
            assert (await post(cluster, "/v1/embeddings", BODIES["/v1/embeddings"]))[0] == 200


async def test_workers_that_prefill_and_decode_apart_get_none_but_counts() -> None:
    async with Cluster() as cluster:
        for path in WHOLE:
            status, answer = await post(cluster, path, BODIES[path])
            if path == "/v1/messages/count_tokens":
                assert (status, json.loads(answer)["path"]) == (200, path)
                continue
            assert status == 404
            assert path in json.loads(answer)["message"]
            assert "mode: plain" in json.loads(answer)["message"]
        status, answer = await post(cluster, "/v1/messages/count_tokens", {"model": "m"})
        assert (status, json.loads(answer)["type"]) == (400, "error")
