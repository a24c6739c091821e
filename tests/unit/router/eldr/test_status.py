"""`toolkit status` on ELDR, from what a real router says."""

import json
from pathlib import Path

from tests.unit.router.eldr.cluster import Traffic, eldr_cluster, write_profile
from toolkit.cli.status import eldr_line


async def test_one_line_says_what_became_of_the_requests(tmp_path: Path) -> None:
    async with eldr_cluster(write_profile(tmp_path / "p")) as cluster:
        assert eldr_line((await cluster.state())["eldr"]) == (
            "eldr: 4 centroids, tau 0.1; 0 of 0 requests by signature"
        )
        traffic = Traffic(cluster)
        await traffic.many([0, 1, 2])
        await traffic.send(standin_signature=None)
        cluster.worker("decode-3").kill()
        state = await cluster.until(lambda s: s["eldr"]["centroids"] == 3)
        line = eldr_line(json.loads(json.dumps(state))["eldr"])
        assert line.startswith("eldr: 3 centroids, tau 0.1; 3 of 4 requests by signature (band")
        assert "1 by load: 1 no signature" in line
        assert line.endswith("last refit: workers, adopted")
