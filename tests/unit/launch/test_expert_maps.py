"""Each decode server starts with the experts of its cluster placed."""

import json
from typing import Any

import numpy as np
import pytest

from toolkit.launch.contents import fixed
from toolkit.launch.errors import LaunchError
from toolkit.launch.resolve import resolve
from toolkit.placement import Topology, from_sglang
from toolkit.placement.by_load import busiest, by_load
from toolkit.profile_folder import store
from toolkit.resources import profiles_dir
from toolkit.settings.deployment import Deployment
from toolkit.signatures.calibrated import calibrated
from toolkit.signatures.clusters import fresh_centroids

RANKS = {"tp": 2, "ep": 2, "expert_placement": "clusters"}


def deployment(**decode: Any) -> Deployment:
    router = decode.pop("router", {"profile": "embedded", "decode_policy": "eldr"})
    return Deployment.model_validate({
        "name": "maps", "device": "cpu", "model": "embedded", "router": router,
        "decode": RANKS | {"replicas": 2} | decode,
    })  # fmt: skip


def clusters(k: int) -> list[np.ndarray]:
    """[L, E] of the requests near each of k centroids, of those that were not fitted to."""
    folder = profiles_dir() / "embedded"
    known, (_, arrays) = calibrated(str(folder)), store.read(folder)
    rows = known.centroids if k == 2 else fresh_centroids(known.requests.fitted, k, 0)
    held = arrays["held_out"] == 1
    nearest = (known.requests.judged @ rows.T).argmax(axis=1)
    return [arrays["decode_counts"][held][nearest == row].sum(axis=0) for row in range(k)]


@pytest.mark.parametrize(("replicas", "redundant"), [(2, 0), (2, 4), (4, 4)])
def test_a_server_s_map_suits_its_own_requests_best(replicas: int, redundant: int) -> None:
    args = {"ep-num-redundant-experts": redundant} if redundant else {}
    plan = resolve(deployment(replicas=replicas, args=args))
    assert list(plan.expert_maps) == [f"decode-{n}.placed.json" for n in range(replicas)]
    maps = [from_sglang(each, 48, 2) for each in plan.expert_maps.values()]
    assert {each.redundant for each in maps} == {redundant}
    loads = clusters(replicas)
    everyone = by_load(np.sum(loads, axis=0), Topology(2), redundant)
    own = [busiest(each, load[None])[0] for each, load in zip(maps, loads, strict=True)]
    # Even against one that was fitted to the very requests that all of these are judged on.
    assert np.mean(own) < np.mean(busiest(everyone, np.stack(loads)))


def test_workers_are_told_their_file_and_where_tokens_go() -> None:
    plan = resolve(deployment())
    for worker in plan.workers:
        placed = worker.role == "decode"
        assert ("--init-expert-location" in worker.argv) == placed
        if placed:
            at = worker.argv.index("--init-expert-location")
            assert worker.argv[at + 1] == f"{{run_dir}}/{worker.name}.placed.json"
            at = worker.argv.index("--ep-dispatch-algorithm")
            assert worker.argv[at + 1] == "dynamic"
            assert "--enable-return-routed-experts" not in worker.argv
    files = fixed(plan)
    assert set(files) == {"plan.json", "router.json", *plan.expert_maps}
    told = json.loads(json.dumps(files["plan.json"]))
    assert told["expert_maps"] == list(plan.expert_maps)
    assert not resolve(deployment(expert_placement=None)).expert_maps


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"router": {}}, "needs a profile"),
        ({"args": {"init-expert-location": "x.json"}}, "says init-expert-location, too"),
        ({"args": {"ep_num_redundant_experts": 3}}, "do not divide over 2 GPUs"),
        ({"args": {"ep-num-redundant-experts": "4"}}, "must be a whole number"),
        ({"replicas": 400}, "400"),
    ],
)
def test_what_cannot_be_placed_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LaunchError) as caught:
        resolve(deployment(**changes))
    (problem,) = caught.value.problems
    assert problem.where == "decode.expert_placement" and said in str(problem)


def test_it_is_for_decode_servers_with_experts_on_several_gpus() -> None:
    with pytest.raises(ValueError, match="set ep to tp"):
        deployment(ep=1)
    with pytest.raises(ValueError, match="ELDR chooses decode workers"):
        Deployment.model_validate({"name": "maps", "device": "cpu", "prefill": RANKS})
