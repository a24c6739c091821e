"""Build the workers and the router of a plan: ports, flags, environment, order of start."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from toolkit.contract.addresses import host_port, http_url, reachable
from toolkit.contract.variables import (
    PAUSE_VARIABLE,
    PREEMPT_VARIABLE,
    WORKER_KEY_VARIABLE,
)
from toolkit.launch import claims, command, hardware
from toolkit.launch.checks.preempting import between_chunks
from toolkit.launch.checks.waiting import PARKED
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.expert_maps import PLACED, file_of
from toolkit.launch.model import ModelFacts
from toolkit.launch.permissions import permissions
from toolkit.launch.placement import NodePlace
from toolkit.launch.plan import DIST_PORTS, RUN_DIR, RouterPlan, WorkerPlan
from toolkit.launch.ports import CountedPorts, FreePorts
from toolkit.launch.profile_needs import ProfileNeeds, usable_qoe
from toolkit.launch.wait_limits import STUCK, bounds, wait_limits
from toolkit.settings.deployment import Deployment
from toolkit.settings.role import Role
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.section import Router

SHARED = (Router.model_fields.keys() & RouterConfig.model_fields) - {
    "host", "port", "admin_port", "open", "dispatch", "seed", "profile", "record",
    "record_decisions", "api_keys_file",
    "admin_key_file", "classes", "rebalance", "allow",
}  # fmt: skip
"""Keys that the router's file has as the deployment file says them. Paths become absolute; the
others are in it in any case, or depend on more than what the file says."""


def dispatch_of(deployment: Deployment) -> str:
    """`late` needs prefill and decode apart, our router in front, and is then the default."""
    if deployment.router.says("dispatch"):
        return deployment.router.dispatch
    late = deployment.mode == "pd" and deployment.router.kind == "toolkit"
    return "late" if late else "concurrent"


class PlanBuilder:
    """Builds workers and router; holds what they share."""

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
        fixed = {port for port in (front.port, front.admin_port) if port}
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

    def router(self, workers: tuple[WorkerPlan, ...]) -> RouterPlan | None:
        router = self.deployment.router
        if router.kind == "none":
            return None
        node = router.node or next(iter(self.addresses))
        if node not in self.addresses:
            raise LaunchError([Problem("router.node", f"no host {node!r}", "name one of hosts")])
        port = router.port or self.ports.take()
        reach = reachable(router.host, self.addresses[node])
        entries = [_router_entry(w, w.host == node) for w in workers if w.url]
        if router.kind == "sglang":
            argv = command.sglang_router_command(self.deployment, port, self.ports.take(), entries)
            config = None
        else:
            argv = [sys.executable, "-m", "toolkit.router", f"{RUN_DIR}/router.json"]
            config = self._router_config(port, entries)
        return RouterPlan(
            kind=router.kind,
            node=node,
            host=router.host,
            port=port,
            url=http_url(reach, port),
            command=tuple(argv),
            env=command.python_env() | self.deployment.env,
            config=config,
            local=node == self.local,
            key_env=router.api_key_env,
            open=router.open,
        )

    def _router_config(self, port: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
        router = self.deployment.router
        said = router.model_dump(mode="json", include=SHARED & router.said.keys())
        optional = said | wait_limits(self.deployment.device, router)
        stuck = bounds(self.deployment.device, self.deployment.restart)
        if stuck != STUCK["cpu"]:
            optional |= {"stuck_s": stuck.stuck_s, "announced_s": stuck.announced_s}
        if self.deployment.prefill.waiting.order == "sjf" and not router.says("parked_per_prefill"):
            optional["parked_per_prefill"] = PARKED
        if self.locality:
            optional["profile"] = self.locality.folder
        if router.classes is not None:
            optional["classes"] = router.classes.model_dump(mode="json")
        if (layout := self.deployment.decode.layout) is not None:
            optional["stages"] = [{"upto": s.upto, "replicas": s.replicas} for s in layout.stages]
        if (rebalance := self._rebalance(layout is not None)) is not None:
            optional["rebalance"] = rebalance
        if allow := permissions(self.deployment):
            optional["allow"] = allow
        if self.deployment.insecure:
            optional["insecure"] = True
        for key in ("record", "record_decisions", "api_keys_file", "admin_key_file"):
            if getattr(router, key) is not None:
                optional[key] = str(self.deployment.path_of(getattr(router, key)))
        if not (router.admin_key_env or router.admin_key_file):
            optional["admin_port"] = router.admin_port or self.ports.take()
        return {
            "host": router.host,
            "port": port,
            "open": router.open,
            "worker_api_key_env": WORKER_KEY_VARIABLE,
            "dispatch": self.dispatch,
            "seed": router.seed,
            "workers": entries,
        } | {key: value for key, value in optional.items() if value is not None}

    def _rebalance(self, staged: bool) -> dict[str, Any] | None:
        """As the router reads it, with the profile's fit where the file has none of its own."""
        given = self.deployment.router.rebalance
        if given is None and not staged:
            return None
        data = {} if given is None else given.model_dump(mode="json", exclude_unset=True)
        qoe = usable_qoe(self.locality)
        if "qoe" not in data and qoe is not None:
            data["qoe"] = list(qoe.coefficients)
        return data


def _router_entry(worker: WorkerPlan, same_run: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": worker.name.removesuffix("-node-0"),
        "role": worker.role,
        "url": worker.url,
        "dp_size": worker.dp,
        "dp_attention": worker.dp_attention,
        "same_run": same_run,
    }
    between_layers = PREEMPT_VARIABLE in worker.env and not between_chunks(worker)
    if between_layers or PAUSE_VARIABLE in worker.env:
        entry["preempts"] = True
    if worker.bootstrap_port is not None:
        entry |= {"bootstrap_host": worker.address, "bootstrap_port": worker.bootstrap_port}
    return entry


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
