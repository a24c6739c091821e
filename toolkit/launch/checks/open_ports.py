"""What a deployment listens on, what a stranger meets there, and the rule that keeps him away."""

from dataclasses import dataclass

from toolkit.contract.addresses import is_ipv6, loopback_like
from toolkit.launch.plan import DIST_PORTS, Plan
from toolkit.loopback import is_loopback

MOONCAKE_PORTS = "15000-17000"
"""Where Mooncake takes its ports from (MC_MIN_RPC_PORT, MC_MAX_RPC_PORT)."""
EPHEMERAL = "32768-60999"
"""Where the kernel takes ports that nobody named (net.ipv4.ip_local_port_range)."""


@dataclass(frozen=True)
class OpenPort:
    """`ports` as nftables writes them; `guard`: what a stranger there needs, if anything."""

    who: str
    address: str
    ports: str
    what: str
    guard: str = ""


def open_ports(plan: Plan) -> list[OpenPort]:
    """Every kind of socket on which the deployment listens."""
    found = []
    for router in plan.routers:
        config, who = router.config or {}, router.name
        keyed = bool(config.get("api_key_env") or config.get("api_keys_file"))
        key = "a client key" if keyed else ""
        found.append(OpenPort(who, router.host, str(router.port), "clients", key))
        if admin := config.get("admin_port"):
            own = loopback_like(router.host)
            found.append(OpenPort(who, own, str(admin), "orders", "to be no web page"))
    for w in plan.workers:
        key = "the run's key" if plan.keyed else ""
        found.append(OpenPort(w.name, w.address, str(w.port), "HTTP", key))
        if w.bootstrap_port:
            found.append(OpenPort(w.name, w.address, str(w.bootstrap_port), "KV bootstrap"))
        if w.dist_port and w.node_rank == 0:
            ports = f"{w.dist_port}-{w.dist_port + DIST_PORTS - 1}"
            found.append(OpenPort(w.name, w.address, ports, "messages of ranks, torch's store"))
    for address in dict.fromkeys(w.address for w in plan.workers):
        what = "messages of processes and of KV transfer, torch's store, gloo"
        found.append(OpenPort("workers", address, EPHEMERAL, what))
        if (plan.transfer or "").startswith("mooncake"):
            found.append(OpenPort("workers", address, MOONCAKE_PORTS, "Mooncake: KV memory"))
    return found


def firewall(plan: Plan) -> list[str]:
    """The nftables commands by which only the deployment's hosts reach what asks for no key; empty
    where all of that is on loopback."""
    hosts = {port.address for port in open_ports(plan) if not is_loopback(port.address)}
    hosts &= {worker.address for worker in plan.workers}
    if not hosts:
        return []
    old = sorted(host for host in hosts if not is_ipv6(host))
    new = sorted(host for host in hosts if is_ipv6(host))
    routers = {router.name for router in plan.routers}
    ports = dict.fromkeys(d.ports for d in open_ports(plan) if d.who not in routers)
    return [
        "nft add table inet toolkit",
        "nft 'add chain inet toolkit input { type filter hook input priority 0; }'",
        "nft 'add rule inet toolkit input ct state established,related accept'",
        "nft 'add rule inet toolkit input iif lo accept'",
        *(
            f"nft 'add rule inet toolkit input {family} saddr {{ {', '.join(some)} }} accept'"
            for family, some in (("ip", old), ("ip6", new))
            if some
        ),
        f"nft 'add rule inet toolkit input tcp dport {{ {', '.join(ports)} }} drop'",
    ]


def told(plan: Plan) -> str:
    """The open ports as comment lines, for the dry run."""
    lines = [
        "listens (docs/pages/operations.md, Ports); all but the router's on the address shown only:"
    ]
    for port in open_ports(plan):
        guard = f"; wants {port.guard}" if port.guard else ""
        lines.append(f"  {port.who}: {port.address}, port {port.ports}: {port.what}{guard}")
    if plan.isolate:
        lines.append("isolate: all of it but clients' is in a network namespace of its own")
    rules = firewall(plan)
    if rules:
        lines += ["what wants nothing is open to the network of those addresses; on every host:"]
        lines += [f"  {rule}" for rule in rules]
    return "\n".join(f"# {line}" for line in lines)
