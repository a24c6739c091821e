"""Build the workers of a plan: ports, flags, environment, order of start."""

import os
import sys
from collections.abc import Mapping

from toolkit.contract.addresses import host_port, http_url
from toolkit.launch import claims, command, hardware
from toolkit.launch.expert_maps import PLACED, file_of
from toolkit.launch.model import ModelFacts
from toolkit.launch.placement import NodePlace
from toolkit.launch.plan import DIST_PORTS, RUN_DIR, WorkerPlan
from toolkit.launch.ports import CountedPorts, FreePorts
from toolkit.launch.profile_needs import ProfileNeeds
from toolkit.settings.deployment import Deployment
from toolkit.settings.role import Role


def dispatch_of(deployment: Deployment) -> str:
    """`late` needs prefill and decode apart, our router in front, and is then the default."""
    if deployment.router.says("dispatch"):
        return deployment.router.dispatch
    late = deployment.mode == "pd" and deployment.router.kind == "toolkit"
    return "late" if late else "concurrent"


class PlanBuilder:
    """Builds the workers; holds what they and the routers share (`router_builder`)."""

    def __init__(
        self,
        deployment: Deployment,
        model: ModelFacts,
        addresses: Mapping[str, str],
        local: str,
        locality: ProfileNeeds | None = None,
    ) -> None:
        self.deployment = deployment
        self.model = model
        self.addresses = addresses
        self.local = local
        self.locality = locality
        self.dispatch = dispatch_of(deployment)
        front = deployment.router
        fixed = set[int]()
        for port in filter(None, (front.port, front.admin_port)):
            fixed |= set(range(port, port + front.on_a_host))
        for role in deployment.roles.values():
            for start in (role.port, role.bootstrap_port):
                fixed |= set(range(start, start + role.replicas)) if start else set()
        # Every host must compute the same ports; on a single one the free ones can be looked up.
        self.ports = (
            CountedPorts(deployment.base_port, fixed)
            if len(addresses) > 1
            else FreePorts(fixed | claims.claimed())
        )

    def workers(self, places: Mapping[str, tuple[NodePlace, ...]]) -> tuple[WorkerPlan, ...]:
        workers: list[WorkerPlan] = []
        for role_name, role in self.deployment.roles.items():
            for replica in range(role.replicas):
                nodes = places[f"{role_name}-{replica}"]
                workers += self._replica(role_name, role, replica, nodes, workers)
        return tuple(workers)

    def _replica(
        self,
        role_name: str,
        role: Role,
        replica: int,
        nodes: tuple[NodePlace, ...],
        before: list[WorkerPlan],
    ) -> list[WorkerPlan]:
        port = role.port + replica if role.port else self.ports.take()
        bootstrap = None
        if role_name == "prefill" or (role_name == "decode" and self.deployment.sends):
            bootstrap = role.bootstrap_port + replica if role.bootstrap_port else self.ports.take()
        # Where a decode worker is chosen by experts, prefill has to say which they are.
        layers = self.locality.layers if self.locality and role_name == "prefill" else ()
        needs_dist = role.nodes > 1 or role.dp_attention
        dist = self.ports.take(DIST_PORTS) if needs_dist else None
        head = self.addresses[nodes[0].host]
        base = f"{role_name}-{replica}"
        result = []
        for node in nodes:
            address = self.addresses[node.host]
            flags = command.worker_flags(
                self.deployment,
                role_name,
                role,
                self.model,
                host=address,
                port=port,
                bootstrap_port=bootstrap,
                dispatch=self.dispatch,
                record=bool(layers),
            )
            if role.expert_placement and role_name == "decode":
                flags[PLACED] = f"{RUN_DIR}/{file_of(base)}"
            if dist:
                flags["dist-init-addr"] = host_port(head, dist)
            if role.nodes > 1:
                flags |= {"nnodes": role.nodes, "node-rank": node.node_rank}
            argv = tuple(command.to_argv(flags))
            first = node.node_rank == 0
            result.append(
                WorkerPlan(
                    name=base if role.nodes == 1 else f"{base}-node-{node.node_rank}",
                    role="plain" if role_name == "worker" else role_name,
                    replica=replica,
                    node_rank=node.node_rank,
                    nodes=role.nodes,
                    host=node.host,
                    address=address,
                    url=http_url(address, port) if first else None,
                    port=port,
                    bootstrap_port=bootstrap if first else None,
                    dist_port=dist,
                    gpus=node.gpus,
                    tp=role.tp,
                    dp=role.dp,
                    ep=role.ep,
                    dp_attention=role.dp_attention,
                    kv_tokens=flags.get("max-total-tokens"),
                    max_running=flags.get("max-running-requests"),
                    ranges=_ranges(role, replica),
                    # SGLang sizes its KV pool by the memory it finds free: workers that share a
                    # GPU take it one after the other (`toolkit.launch.turns`).
                    after=tuple(
                        w.name
                        for w in before
                        if w.host == node.host and set(w.gpus) & set(node.gpus)
                    ),
                    argv=argv,
                    command=(sys.executable, "-m", "patches.worker", *argv),
                    env=command.worker_env(
                        self.deployment,
                        role_name,
                        role,
                        address=address,
                        devices=_devices(node.gpus, node.host == self.local),
                        cores=os.cpu_count() or 1,
                        dispatch=self.dispatch,
                        signature_layers=layers,
                        profile=self.locality.folder if self.locality else "",
                        kept=f"{RUN_DIR}/{base}.experts.json" if role.nodes == 1 else "1",
                    ),
                    local=node.host == self.local,
                )
            )
        return result


def _ranges(role: Role, replica: int) -> tuple[str, ...]:
    """Of the stages of its ranks, each once."""
    layout = role.layout
    if layout is None:
        return ()
    ranks = range(replica * role.dp, (replica + 1) * role.dp)
    return tuple(dict.fromkeys(layout.shown(layout.stage_of_rank(rank)) for rank in ranks))


def _devices(gpus: tuple[int, ...], local: bool) -> tuple[str, ...]:
    """Names for CUDA_VISIBLE_DEVICES: what the launcher itself sees, by position."""
    seen = hardware.visible_gpus() if local else ()
    return tuple(seen[g] if g < len(seen) else str(g) for g in gpus)
