"""Put workers on hosts and GPUs. Pure: sizes in, places out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.launch.errors import LaunchError, Problem


@dataclass(frozen=True)
class ReplicaRequest:
    """One replica that wants a place: `per_node` GPUs on each of `nodes` hosts."""

    name: str
    nodes: int
    per_node: int
    hosts: tuple[str, ...] | None = None
    gpus: tuple[int, ...] | None = None


@dataclass(frozen=True)
class NodePlace:
    """Node `node_rank` of a replica: a host and, on CUDA, the GPUs there."""

    host: str
    node_rank: int
    gpus: tuple[int, ...]


def place(
    requests: Sequence[ReplicaRequest], host_gpus: Mapping[str, int], needs_gpus: bool
) -> dict[str, tuple[NodePlace, ...]]:
    """Places for each request, by name, in the order given (first fit).

    Explicit hosts and GPUs are honoured, and two replicas may then share a GPU; GPUs that the
    planner hands out are never shared. Raises LaunchError naming all that found no place.
    """
    free = {host: list(range(count)) for host, count in host_gpus.items()}
    for request in requests:
        for gpu in request.gpus or ():
            for host in request.hosts or free:
                if gpu in free.get(host, ()):
                    free[host].remove(gpu)
    problems: list[Problem] = []
    result: dict[str, tuple[NodePlace, ...]] = {}
    turn = 0
    for request in requests:
        hosts, problem = _hosts(request, free, needs_gpus, turn)
        if problem:
            problems.append(problem)
            continue
        turn += request.nodes
        places = []
        for rank, host in enumerate(hosts):
            gpus: tuple[int, ...] = ()
            if needs_gpus and request.gpus is not None:
                gpus = request.gpus
            elif needs_gpus:
                gpus = tuple(free[host][: request.per_node])
                del free[host][: request.per_node]
            places.append(NodePlace(host, rank, gpus))
        result[request.name] = tuple(places)
    if problems:
        raise LaunchError(problems)
    return result


def _hosts(
    request: ReplicaRequest, free: Mapping[str, list[int]], needs_gpus: bool, turn: int
) -> tuple[Sequence[str], Problem | None]:
    if request.hosts is not None:
        unknown = [h for h in request.hosts if h not in free]
        if unknown:
            what = f"unknown host {unknown[0]!r}"
            return (), Problem(request.name, what, f"hosts are: {', '.join(free)}")
        candidates = list(request.hosts)
    else:
        candidates = list(free)
    wants = needs_gpus and request.gpus is None
    fitting = [h for h in candidates if not wants or len(free[h]) >= request.per_node]
    if len(fitting) < request.nodes:
        left = ", ".join(f"{h}: {len(free[h])}" for h in candidates)
        what = f"wants {request.nodes} host(s) with {request.per_node} free GPU(s), left are {left}"
        repair = (
            "fewer replicas or a smaller tp/dp, more hosts, or let workers share with explicit "
            "`gpus: [0]` on each role (see launch/one-gpu.yaml)"
        )
        return (), Problem(request.name, what, repair)
    if not wants and request.hosts is None:
        # No GPUs to count: spread the replicas over the hosts in turn.
        fitting = [fitting[(turn + i) % len(fitting)] for i in range(len(fitting))]
    return fitting[: request.nodes], None
