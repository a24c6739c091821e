"""Where each decode server's experts lie when it starts: by the requests that ELDR sends to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolkit.launch.errors import LaunchError, Problem
from toolkit.settings.deployment import Deployment

if TYPE_CHECKING:
    from toolkit.launch.plan import WorkerPlan
    from toolkit.launch.profile_needs import ProfileNeeds

KEY = "decode.expert_placement"
REDUNDANT = "ep-num-redundant-experts"
PLACED = "init-expert-location"


def file_of(server: str) -> str:
    """The file in the run's folder with this decode server's map."""
    return f"{server}.placed.json"


def expert_maps(
    deployment: Deployment, needs: ProfileNeeds | None, workers: Sequence[WorkerPlan]
) -> dict[str, Any]:
    """By file of the run's folder, what `--init-expert-location` loads; nothing without
    `expert_placement`.

    Decode server i gets centroid i, as in the router when it starts (of as many as there are
    servers; ranks with experts of their own count one by one, and share their server's map), and a
    placement by the load of the profile's requests that are nearest to it, prompt and answer
    (`toolkit.placement.by_load`). *Ours.*

    LaunchError: no profile, a placement that the file names itself, sizes that do not fit.
    """
    role = deployment.decode
    if role.expert_placement is None:
        return {}
    args = {name.lstrip("-").replace("_", "-"): value for name, value in role.args.items()}
    if needs is None:
        raise _refused("needs a profile", "set router.profile, or remove it")
    if PLACED in args:
        raise _refused(f"decode.args says {PLACED}, too", "remove one of them")
    servers = [w for w in workers if w.role == "decode" and w.node_rank == 0]
    try:
        groups = [server.centroids for server in servers]
        loads = _loads(needs.folder, groups, deployment.router.seed)
        return {
            file_of(f"decode-{server.replica}"): _map(needs, load, role.ep, args.get(REDUNDANT, 0))
            for server, load in zip(servers, loads, strict=True)
        }
    except ValueError as error:  # sizes that do not fit, too few requests
        repair = "change decode.ep, the redundant experts or the number of servers"
        raise _refused(str(error), repair) from error


def _refused(what: str, repair: str) -> LaunchError:
    return LaunchError([Problem(KEY, what, repair)])


def _map(needs: ProfileNeeds, load: Any, gpus: int, redundant: Any) -> dict[str, Any]:
    from toolkit.placement import Topology
    from toolkit.placement.by_load import by_load

    if type(redundant) is not int:
        raise ValueError(f"{REDUNDANT} is {redundant!r}: it must be a whole number")
    model = needs.profile.model
    return by_load(load, Topology(gpus), redundant).to_sglang(model.layers, model.hidden_layers)


def _loads(folder: str, groups: Sequence[int], seed: int) -> list[Any]:
    """[L, E] of each server; `groups`: how many centroids each has."""
    import numpy as np

    from toolkit import exact
    from toolkit.profile_folder import store
    from toolkit.signatures.calibrated import calibrated
    from toolkit.signatures.clusters import fresh_centroids

    known, (_, arrays) = calibrated(folder), store.read(folder)
    k = sum(groups)
    rows = known.centroids
    if len(rows) != k:
        rows = fresh_centroids(known.requests.fitted, k, seed)
    nearest = exact.cosines(known.requests.fitted, rows).argmax(axis=1)
    fitted = arrays["held_out"] == 0
    counts = (arrays["prefill_counts"] + arrays["decode_counts"])[fitted]
    server = np.repeat(np.arange(len(groups)), groups)[nearest]
    found = [counts[server == number].sum(axis=0) for number in range(len(groups))]
    # A server that no request of the profile is near to serves what there is.
    return [load if load.any(axis=1).all() else counts.sum(axis=0) for load in found]
