"""From a deployment to the plan of it, as seen from one of its hosts."""

import socket
from collections.abc import Mapping

from toolkit.launch import command, hardware
from toolkit.launch.builder import PlanBuilder
from toolkit.launch.checks import reserved
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.expert_maps import expert_maps
from toolkit.launch.model import read_model
from toolkit.launch.placement import ReplicaRequest, place
from toolkit.launch.plan import Plan
from toolkit.launch.profile_needs import read_locality
from toolkit.launch.router_builder import RouterBuilder
from toolkit.launch.wait_limits import of_device
from toolkit.settings.deployment import Deployment
from toolkit.settings.dp_policy import check_args
from toolkit.settings.role import Role


def resolve(deployment: Deployment, host: str | None = None) -> Plan:
    """Turn a deployment into a plan as seen from `host` (a name in `hosts`; default: the one with
    this machine's name or address, else the first).

    Raises LaunchError when there is no such plan (no model, no host, not enough GPUs, no profile).
    """
    problems = [p for name, role in deployment.roles.items() for p in _role_problems(name, role)]
    problems += reserved.problems("router.args", deployment.router.args, reserved.ROUTER)
    if problems:
        raise LaunchError(problems)
    model = read_model(deployment)
    locality = read_locality(deployment)
    addresses = {n: h.address for n, h in deployment.hosts.items()} or {"local": "127.0.0.1"}
    local = _local_host(addresses, host)
    requests = list(_requests(deployment))
    gpus = {
        name: (deployment.hosts[name].gpus if name in deployment.hosts else None)
        or (len(hardware.visible_gpus()) if name == local else 0)
        or 8
        for name in addresses
    }
    places = place(requests, gpus, needs_gpus=deployment.device == "cuda")
    builder = PlanBuilder(deployment, model, addresses, local, locality)
    workers = builder.workers(places)
    return Plan(
        name=deployment.name,
        device=deployment.device,
        mode=deployment.mode,
        model=model,
        dispatch=builder.dispatch,
        transfer=command.transfer_backend(deployment) if deployment.mode == "pd" else None,
        local_host=local,
        workers=workers,
        expert_maps=expert_maps(deployment, locality, workers),
        routers=RouterBuilder(builder, workers).routers(),
        timeouts=deployment.timeouts,
        restart=of_device(deployment.device, deployment.restart),
        locality=locality,
        worker_key_env=deployment.worker_key_env,
        worker_key_file=deployment.worker_key_file
        and str(deployment.path_of(deployment.worker_key_file)),
        insecure=deployment.insecure,
        logs=deployment.logs,
        isolate=deployment.isolate,
    )


def _role_problems(name: str, role: Role) -> list[Problem]:
    found = reserved.problems(f"{name}.args", role.args, reserved.WORKER)
    problems = [*found, *check_args(name, role)]
    wanted = role.replicas * role.nodes
    if role.hosts is not None and len(role.hosts) not in (role.nodes, wanted):
        what = f"lists {len(role.hosts)} hosts for {role.replicas} replicas of {role.nodes} nodes"
        problems.append(Problem(f"{name}.hosts", what, f"list {wanted} (or {role.nodes}, shared)"))
    per_node = role.ranks // role.nodes
    if role.gpus is not None and len(role.gpus) not in (per_node, per_node * role.replicas):
        what = f"lists {len(role.gpus)} GPUs for {role.replicas} replicas of {per_node} a host"
        repair = f"list {per_node * role.replicas} (or {per_node}, shared by the replicas)"
        problems.append(Problem(f"{name}.gpus", what, repair))
    return problems


def _requests(deployment: Deployment) -> list[ReplicaRequest]:
    requests = []
    for name, role in deployment.roles.items():
        per_node = role.ranks // role.nodes
        for i in range(role.replicas):
            hosts, gpus = role.hosts, role.gpus
            if hosts is not None and len(hosts) > role.nodes:
                hosts = hosts[i * role.nodes : (i + 1) * role.nodes]
            if gpus is not None and len(gpus) > per_node:
                gpus = gpus[i * per_node : (i + 1) * per_node]
            requests.append(
                ReplicaRequest(
                    name=f"{name}-{i}",
                    nodes=role.nodes,
                    per_node=per_node,
                    hosts=tuple(hosts) if hosts is not None else None,
                    gpus=tuple(gpus) if gpus is not None else None,
                )
            )
    return requests


def _local_host(addresses: Mapping[str, str], wanted: str | None) -> str:
    if wanted is not None:
        if wanted in addresses:
            return wanted
        raise LaunchError([Problem("--host", f"no host {wanted!r}", f"one of {list(addresses)}")])
    mine = {socket.gethostname(), socket.gethostname().split(".")[0]}
    for name, address in addresses.items():
        if name in mine or address in mine:
            return name
    return next(iter(addresses))
