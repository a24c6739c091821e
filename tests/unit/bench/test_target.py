"""What a benchmark finds out about the server that it loads."""

from __future__ import annotations

from pathlib import Path

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import run
from toolkit.bench.target import discover, get_json


def test_the_folder_of_a_model_is_asked_for_at_the_admin_port(tmp_path: Path) -> None:
    """The router tells clients the folder's name alone, and a benchmark needs its tokenizer."""

    async def check() -> None:
        async with Cluster(decodes=1, worker_args=["--folder", str(tmp_path)]) as cluster:
            told = await get_json(cluster.session, cluster.url + "/get_model_info")
            assert told["model_path"] == tmp_path.name
            target = await discover(cluster.session, cluster.url)
            assert (target.model, target.context) == ("standin", 8192)
            assert target.model_path == tmp_path

    run(check())
