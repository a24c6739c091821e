"""Build the routers of a plan: where each runs, its ports, and its configuration file."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.contract.addresses import http_url, reachable
from toolkit.contract.variables import (
    PAUSE_VARIABLE,
    PREEMPT_VARIABLE,
    ROUTER_RECORD_VARIABLE,
    WORKER_KEY_VARIABLE,
)
from toolkit.launch import command
from toolkit.launch.builder import PlanBuilder
from toolkit.launch.checks.preempting import between_chunks
from toolkit.launch.checks.waiting import PARKED
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.permissions import permissions
from toolkit.launch.plan import RUN_DIR, RouterPlan, WorkerPlan
from toolkit.launch.profile_needs import usable_qoe
from toolkit.launch.wait_limits import STUCK, bounds, wait_limits
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.section import Router

SHARED = (Router.model_fields.keys() & RouterConfig.model_fields) - {
    "host", "port", "admin_port", "open", "dispatch", "seed", "profile", "record",
    "record_decisions", "api_keys_file",
    "admin_key_file", "classes", "rebalance", "allow",
}  # fmt: skip
"""Keys that the router's file has as the deployment file says them. Paths become absolute; the
others are in it in any case, or depend on more than what the file says."""


class RouterBuilder:
    """Builds the routers over these workers. All have the same policies, keys and profile; ports,
    files and the number by which their rotations differ are each one's own."""

    def __init__(self, plan: PlanBuilder, workers: tuple[WorkerPlan, ...]) -> None:
        self._plan = plan
        self._deployment = plan.deployment
        self._router = plan.deployment.router
        self._workers = workers
        nodes = self._router.nodes or (next(iter(plan.addresses)),)
        self._places = [nodes[number % len(nodes)] for number in range(self._router.count)]

    def routers(self) -> tuple[RouterPlan, ...]:
        """In the order of their numbers; none where the deployment has none.

        LaunchError: one is to run on a host that is not there."""
        if self._router.kind == "none":
            return ()
        for node in self._places:
            if node not in self._plan.addresses:
                repair = f"name one of hosts: {', '.join(self._plan.addresses)}"
                raise LaunchError([Problem("router.node", f"no host {node!r}", repair)])
        return tuple(self._one(number) for number in range(len(self._places)))

    def _one(self, number: int) -> RouterPlan:
        router, node = self._router, self._places[number]
        name = "router" if len(self._places) == 1 else f"router-{number}"
        port = self._port(router.port, number)
        entries = [_entry(w, w.host == node) for w in self._workers if w.url]
        env = command.python_env() | self._deployment.env
        if router.kind == "sglang":
            metrics = self._plan.ports.take()
            argv = command.sglang_router_command(self._deployment, port, metrics, entries)
            config = None
        else:
            argv = [sys.executable, "-m", "toolkit.router", f"{RUN_DIR}/{name}.json"]
            config = self._config(port, number, entries)
            if len(self._places) > 1:
                config |= self._its_own(config, name, number)
                env |= _own_record(name, env)
        return RouterPlan(
            name=name,
            kind=router.kind,
            node=node,
            host=router.host,
            port=port,
            url=http_url(reachable(router.host, self._plan.addresses[node]), port),
            command=tuple(argv),
            env=env,
            config=config,
            local=node == self._plan.local,
            key_env=router.api_key_env,
            open=router.open,
        )

    def _port(self, first: int | None, number: int) -> int:
        """Of several on a host the second has the port after the first one's."""
        before = self._places[:number].count(self._places[number])
        return first + before if first else self._plan.ports.take()

    def _its_own(self, config: Mapping[str, Any], name: str, number: int) -> dict[str, Any]:
        """What tells it from the others: no two of them write a file."""
        own: dict[str, Any] = {"number": number}
        if (here := self._places.count(self._places[number])) > 1:
            own["routers_here"] = here
        if "record" in config:
            path = Path(config["record"])
            own["record"] = str(path.with_name(f"{path.stem}.{name}{path.suffix}"))
        if "record_decisions" in config:
            own["record_decisions"] = f"{config['record_decisions']}.{name}"
        return own

    def _config(self, port: int, number: int, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        router, deployment, locality = self._router, self._deployment, self._plan.locality
        said = router.model_dump(mode="json", include=SHARED & router.said.keys())
        optional = said | wait_limits(deployment.device, router)
        stuck = bounds(deployment.device, deployment.restart)
        if stuck != STUCK["cpu"]:
            optional |= {"stuck_s": stuck.stuck_s, "announced_s": stuck.announced_s}
        if deployment.prefill.waiting.order == "sjf" and not router.says("parked_per_prefill"):
            optional["parked_per_prefill"] = PARKED
        if locality:
            optional["profile"] = locality.folder
        if router.classes is not None:
            optional["classes"] = router.classes.model_dump(mode="json")
        if (layout := deployment.decode.layout) is not None:
            optional["stages"] = [{"upto": s.upto, "replicas": s.replicas} for s in layout.stages]
        if (rebalance := self._rebalance(layout is not None)) is not None:
            optional["rebalance"] = rebalance
        if allow := permissions(deployment):
            optional["allow"] = allow
        if deployment.insecure:
            optional["insecure"] = True
        for key in ("record", "record_decisions", "api_keys_file", "admin_key_file"):
            if getattr(router, key) is not None:
                optional[key] = str(deployment.path_of(getattr(router, key)))
        if not (router.admin_key_env or router.admin_key_file):
            optional["admin_port"] = self._port(router.admin_port, number)
        return {
            "host": router.host,
            "port": port,
            "open": router.open,
            "worker_api_key_env": WORKER_KEY_VARIABLE,
            "dispatch": self._plan.dispatch,
            "seed": router.seed,
            "workers": entries,
        } | {key: value for key, value in optional.items() if value is not None}

    def _rebalance(self, staged: bool) -> dict[str, Any] | None:
        """As the router reads it, with the profile's fit where the file has none of its own."""
        given = self._router.rebalance
        if given is None and not staged:
            return None
        data = {} if given is None else given.model_dump(mode="json", exclude_unset=True)
        qoe = usable_qoe(self._plan.locality)
        if "qoe" not in data and qoe is not None:
            data["qoe"] = list(qoe.coefficients)
        return data


def _own_record(name: str, env: Mapping[str, str]) -> dict[str, str]:
    """Decisions go to a file of its own, too, where the environment asks for them."""
    asked = env.get(ROUTER_RECORD_VARIABLE, os.environ.get(ROUTER_RECORD_VARIABLE))
    return {ROUTER_RECORD_VARIABLE: f"{asked}.{name}"} if asked else {}


def _entry(worker: WorkerPlan, same_run: bool) -> dict[str, Any]:
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
