"""What a benchmark finds out about the server that it loads."""

from pathlib import Path

import aiohttp
import pytest

from tests.standin.cluster import Cluster
from toolkit.bench.target import discover, get_json


@pytest.mark.parametrize("keys", [False, True])
async def test_the_folder_of_a_model_is_asked_for_at_the_admin_port(
    keys: bool, tmp_path: Path
) -> None:
    """The router tells clients the folder's name alone, and here it is asked for its tokenizer."""
    config = {"api_key_env": "C_KEY", "admin_key_env": "A_KEY"} if keys else {}
    env = {"C_KEY": "of-clients", "A_KEY": "of-admin"} if keys else {}
    args = ["--folder", str(tmp_path)]
    async with Cluster(decodes=1, config=config, env=env, worker_args=args) as cluster:
        headers = {"Authorization": "Bearer of-admin"} if keys else {}
        client = {"Authorization": "Bearer of-clients"} if keys else {}
        async with aiohttp.ClientSession(headers=client) as session:
            told = await get_json(session, cluster.url + "/get_model_info")
            assert told["model_path"] == tmp_path.name
        async with aiohttp.ClientSession(headers=headers) as session:
            target = await discover(session, cluster.url)
        assert (target.model, target.context) == ("standin", 8192)
        assert target.model_path == tmp_path
