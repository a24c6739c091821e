"""Print a plan for people: what runs where, then every command with its environment."""

import shlex
from typing import Any

from toolkit.launch.masking import MASK, masked_argv, masked_env
from toolkit.launch.plan import Plan, WorkerPlan


def summary(plan: Plan) -> Any:
    """A rich table with one row per process."""
    from rich.table import Table

    several = len({w.host for w in plan.workers} | {r.node for r in plan.routers}) > 1
    title = f"{plan.name}: {plan.model.served_name} on {plan.device}, {plan.mode}"
    if plan.transfer:
        title += f", KV over {plan.transfer}, decode chosen {_when(plan.dispatch)}"
    table = Table(title=title, title_justify="left")
    staged = any(w.ranges for w in plan.workers)
    headings = ["process", "role", "host", "address", "ports", "devices", "sizes", "KV tokens"]
    for heading in headings + ["lengths"] * staged:
        if several or heading != "host":
            table.add_column(heading)
    for w in plan.workers:
        row = [w.name + ("" if w.local else " *"), w.role, w.host, w.address, _ports(w)]
        row += [_devices(plan, w), _sizes(w), f"{w.kv_tokens:,}" if w.kv_tokens else "by memory"]
        row += [", ".join(w.ranges)] * staged
        table.add_row(*(row if several else row[:2] + row[3:]))
    for router in plan.routers:
        row = [router.name + ("" if router.local else " *"), router.kind, router.node, router.host]
        row += [str(router.port), "", "", ""] + [""] * staged
        table.add_row(*(row if several else row[:2] + row[3:]))
    if several:
        table.caption = f"* not started by this launcher (--host {plan.local_host})"
    return table


def locality(plan: Plan) -> str:
    """One line on routing by experts; "" where the deployment has no profile."""
    found = plan.locality
    if found is None:
        return ""
    config = plan.router_config
    name = str(config.get("decode_policy", "the router's default"))
    text = f"expert locality: decode policy {name}"
    from toolkit.policies import make_policy
    from toolkit.policies.composed.parts import follows_experts

    part = make_policy(name, tau=config.get("tau")).locality if follows_experts(name) else None
    if part is not None:
        refit = "follow drift" if config.get("refit_on_drift", True) else "stay (refit_on_drift)"
        if part.refits is not None:
            every, window = part.refits.every_s, part.refits.window_s
            refit = f"refitted every {every:g} s on the last {window:g} s"
        text += f", tau {part.tau:g}, centroids {refit}"
    k, fitted = plan.decode_centroids, found.profile.centroids.k
    again = "" if k == fitted else f", refitted from {fitted} to {k} decode workers"
    layers = ",".join(map(str, found.layers))
    return f"{text}; profile {found.folder}, layers {layers}{again}"


def commands(plan: Plan) -> str:
    """Every command, ready for a shell but for secrets (`***`), grouped by host."""
    blocks = [f"# {line}" for line in [locality(plan)] if line]
    hosts = [w.host for w in plan.workers] + [router.node for router in plan.routers]
    for host in dict.fromkeys(hosts):
        whose = "this launcher" if host == plan.local_host else f"toolkit launch ... --host {host}"
        blocks.append(f"# {host} ({whose})")
        for w in plan.workers:
            if w.host == host:
                blocks.append(f"# {w.name}\n{_shell(w.env, w.command)}")
        for router in plan.routers:
            if router.node == host:
                blocks.append(f"# {router.name}\n{_shell(router.env, router.command)}")
    return "\n\n".join(blocks)


def _shell(env: Any, command: Any) -> str:
    settings = " ".join(f"{k}={_quoted(v)}" for k, v in masked_env(env).items())
    shown = masked_argv(command)
    head, rest = shown[:3], shown[3:]
    lines = [f"{settings} \\" if settings else "", shlex.join(head)]
    line = "   "
    for part in _pairs(rest):
        if len(line) + len(part) > 96:
            lines[-1] += " \\"
            lines.append(line)
            line = "   "
        line += " " + part
    if line.strip():
        lines[-1] += " \\"
        lines.append(line)
    return "\n".join(x for x in lines if x)


def _quoted(value: str) -> str:
    return value if value == MASK else shlex.quote(value)


def _pairs(argv: list[str]) -> list[str]:
    """Flags joined with their values, so that a line break never parts them."""
    parts: list[str] = []
    for arg in argv:
        if arg.startswith("--") or not parts:
            parts.append(shlex.quote(arg))
        else:
            parts[-1] += " " + shlex.quote(arg)
    return parts


def _when(dispatch: str) -> str:
    return "after the prefill" if dispatch == "late" else "with the prefill"


def _ports(w: WorkerPlan) -> str:
    text = str(w.port)
    if w.bootstrap_port:
        text += f", bootstrap {w.bootstrap_port}"
    if w.dist_port and w.node_rank == 0:
        text += f", dist {w.dist_port}+"
    return text


def _devices(plan: Plan, w: WorkerPlan) -> str:
    if plan.device == "cpu":
        return "CPU"
    shared = " (shared)" if w.after else ""
    gpus = list(w.gpus)
    if len(gpus) > 2 and gpus == list(range(gpus[0], gpus[-1] + 1)):
        return f"GPU {gpus[0]}-{gpus[-1]}{shared}"
    return f"GPU {','.join(map(str, gpus))}{shared}"


def _sizes(w: WorkerPlan) -> str:
    text = f"TP {w.tp}"
    if w.dp > 1:
        text += f" DP {w.dp}" + (" (attention)" if w.dp_attention else "")
    if w.ep > 1:
        text += f" EP {w.ep}"
    if w.nodes > 1:
        text += f" node {w.node_rank + 1}/{w.nodes}"
    return text
