"""Is the plan possible? Everything that can be known before a process starts, all at once."""

from collections import Counter
from collections.abc import Iterable, Sequence

from toolkit.contract.addresses import loopback_like
from toolkit.keys import KeysError, client_keys, one_key
from toolkit.launch import claims, hardware
from toolkit.launch.checks.agreement import agreement
from toolkit.launch.checks.counted import counted
from toolkit.launch.checks.dispatched import dispatched
from toolkit.launch.checks.engine import engine
from toolkit.launch.checks.flags import Resolved, check_flags
from toolkit.launch.checks.locality import locality
from toolkit.launch.checks.moving import moving
from toolkit.launch.checks.preempting import preempting
from toolkit.launch.checks.redundant import redundant
from toolkit.launch.checks.staged import staged
from toolkit.launch.checks.waiting import waiting
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.keys import names_of
from toolkit.launch.plan import Plan
from toolkit.launch.ports import is_free
from toolkit.loopback import is_loopback

GIB = 2**30
CPU_PROCESS = 1.3 * GIB
"""Memory of a CPU worker beside weights and KV: 1.5 GiB PSS measured with a 23 M model."""


def check(plan: Plan, dry_run: bool = False) -> list[Problem]:
    """Every problem of the plan. A dry run does without the weights and without free memory."""
    flags, resolved = check_flags(plan, dry_run)
    problems = [
        *model(plan, dry_run),
        *engine(plan),
        *routing(plan),
        *secrets(plan, dry_run),
        *locality(plan),
        *waiting(plan),
        *preempting(plan),
        *staged(plan),
        *flags,
    ]
    problems += [*optimistic(plan, resolved), *counted(plan, resolved), *redundant(plan, resolved)]
    problems += [*moving(plan, resolved), *agreement(plan, resolved), *dispatched(plan, resolved)]
    problems += ports(plan)
    if not dry_run:
        problems += memory(plan)
    return problems


def quick(plan: Plan) -> list[Problem]:
    """The checks that take no time."""
    return [
        *model(plan, False),
        *engine(plan),
        *routing(plan),
        *secrets(plan),
        *locality(plan),
        *waiting(plan),
        *preempting(plan),
        *staged(plan),
        *ports(plan),
        *memory(plan),
    ]


def refuse(problems: Iterable[Problem]) -> None:
    """Raise LaunchError when there is a fatal problem among these."""
    problems = list(problems)
    if any(p.fatal for p in problems):
        raise LaunchError([p for p in problems if p.fatal])


def model(plan: Plan, dry_run: bool) -> list[Problem]:
    """Weights are there; on a dry run a stand-in config is enough."""
    if plan.model.weights_here:
        return []
    what = f"no weight files (*.safetensors, *.bin) in {plan.model.path}"
    if dry_run and plan.model.check_path != plan.model.path:
        what += f"; checked against the config in {plan.model.check_path}"
    repair = "download the model there, or change model.path"
    return [Problem("model", what, repair, fatal=not dry_run)]


def routing(plan: Plan) -> list[Problem]:
    """A late decision needs prefill apart from decode, and our router."""
    problems = []
    if plan.dispatch == "late" and plan.mode != "pd":
        repair = "use mode: pd, or dispatch: concurrent"
        problems.append(Problem("router.dispatch", "late needs prefill and decode apart", repair))
    kind = plan.router.kind if plan.router else "none"
    if plan.dispatch == "late" and kind != "toolkit":
        what = f"router: {kind} picks the decode worker before the prefill runs"
        repair = "use router: toolkit, or dispatch: concurrent"
        problems.append(Problem("router.dispatch", what, repair))
    return problems


def secrets(plan: Plan, dry_run: bool = False) -> list[Problem]:
    """Keys that are named must be there (a dry run only says so), and one that several hosts share
    must be named."""
    config = names_of(plan.router)
    local = bool(plan.own_routers)
    wanted = [
        ("router.api_key_env", config.get("api_key_env"), None, local),
        ("router.api_keys_file", None, config.get("api_keys_file"), local),
        ("router.admin_key_env", config.get("admin_key_env"), None, local),
        ("router.admin_key_file", None, config.get("admin_key_file"), local),
        ("worker_key_env", plan.worker_key_env, None, True),
        ("worker_key_file", None, plan.worker_key_file, True),
    ]
    problems = []
    for place, variable, path, here in wanted:
        if not here:
            continue
        try:
            if place == "router.api_keys_file" and path:
                client_keys(path)
            else:
                one_key(variable, path)
        except KeysError as error:
            repair = (
                f"export {variable}=... first" if variable else "see docs/pages/operations.md, Keys"
            )
            problems.append(Problem(place, str(error), repair, fatal=not dry_run))
    exposed = [w.address for w in plan.workers if not is_loopback(w.address)]
    if not plan.keyed:
        if plan.worker_key_env or plan.worker_key_file:
            what = "SGLang's router cannot send a key to workers, so they ask for none"
            problems.append(Problem("worker_key", what, "use router: toolkit, or remove it"))
        if exposed and plan.router is not None and not plan.router.open:
            what = f"workers at {exposed[0]} would ask nobody for a key: SGLang's router has none"
            repair = "use router: toolkit, or say router.open: true where strangers are kept away"
            problems.append(Problem("router.kind", what, repair))
        return problems
    if plan.router is None and not (plan.worker_key_env or plan.worker_key_file):
        what = "the workers ask for the run's key, which nobody but their launcher knows"
        repair = "name one that your own router has too: worker_key_env or worker_key_file"
        problems.append(Problem("router.kind", what, repair, fatal=False))
    several = len({w.host for w in plan.workers} | {router.node for router in plan.routers})
    if several > 1 and not (plan.worker_key_env or plan.worker_key_file):
        what = "the launchers of several hosts must give the workers one key"
        repair = (
            "put the same random text into a variable (worker_key_env: NAME) or a file of mode 600 "
            "(worker_key_file: PATH) on every host: openssl rand -hex 32"
        )
        problems.append(Problem("worker_key_env", what, repair, fatal=not dry_run))
    return problems + open_network(plan)


def open_network(plan: Plan) -> list[Problem]:
    """Keys that leave the machine by plain HTTP: whoever sees the network has them."""
    between = plan.open_network
    if not between:
        return []
    shown = ", ".join(between[:3]) + (f" and {len(between) - 3} more" if len(between) > 3 else "")
    what = f"the run's keys (workers', admin's) go by plain HTTP between {shown}"
    if plan.insecure:
        repair = "keep everybody else off that network, and the ports that --dry-run prints closed"
        return [Problem("insecure", what, repair, fatal=False)]
    repair = "say `insecure: true` where nobody else is on that network (docs/pages/security.md)"
    return [Problem("insecure", what, repair)]


def optimistic(plan: Plan, resolved: Resolved) -> list[Problem]:
    """With late dispatch a prefill must run before it has a decode worker: SGLang only logs that
    some flags do not go with that (arg_groups/serving_hook.py), and then no request ends."""
    if plan.dispatch != "late" or plan.mode != "pd":
        return []
    worker = next(w for w in plan.workers if w.role == "prefill")
    if resolved.get(worker.name, {}).get("optimistic_prefill_attempts") != 0:
        return []
    what = "is 0 with these flags: prefills would wait for a decode worker, which late dispatch "
    what += "chooses after them, until they time out"
    repair = (
        "leave pp-size out; with hierarchical cache use hicache-write-policy write_through, and "
        "hicache-host-memory-mode buffer_only if it has a storage backend; or dispatch: concurrent"
    )
    return [Problem("prefill.args.optimistic-prefill-attempts", what, repair)]


def ports(plan: Plan) -> list[Problem]:
    """No port twice on a host, and those of this host free."""
    wanted: list[tuple[str, str, int, str, bool]] = [
        (w.name, w.host, port, w.address, w.local) for w in plan.workers for port in w.ports
    ]
    for router in plan.routers:
        wanted.append((router.name, router.node, router.port, router.host, router.local))
        if admin := (router.config or {}).get("admin_port"):
            own = loopback_like(router.host)
            wanted.append((f"{router.name}.admin_port", router.node, admin, own, router.local))
    counts = Counter((host, port) for _, host, port, _, _ in wanted)
    problems = []
    for name, host, port, address, local in wanted:
        if counts[host, port] > 1:
            repair = "give them different ports, or none"
            problems.append(Problem(name, f"port {port} is used twice on {host}", repair))
        elif local and (by := claims.holder(address, port)):
            problems.append(claims.taken(name, port, by))
        elif local and _is_ours(address) and not is_free(port, address):
            repair = f"end what listens there (ss -ltnp 'sport = :{port}'), or set another port"
            problems.append(Problem(name, f"port {port} is in use", repair))
    return problems


def memory(plan: Plan) -> list[Problem]:
    """CPU: weights, KV and processes against what is free; CUDA: free GPU memory, when seen."""
    local = [w for w in plan.workers if w.local]
    if plan.device == "cuda":
        return _gpu_memory(plan)
    import psutil

    facts = plan.model
    weights = facts.weight_bytes / facts.weight_item * 4  # float32
    kv_token = facts.kv_bytes_per_token(4)
    need = 0.0
    for w in local:
        copies = 1 if w.dp_attention else w.dp
        ranks = w.tp if w.dp_attention else w.tp * w.dp
        pool = (w.kv_tokens or 0) * kv_token * w.dp
        need += CPU_PROCESS + 0.6 * GIB * (ranks - 1) + weights * copies + pool
    free = psutil.virtual_memory().available
    if need <= free:
        return []
    what = f"needs about {need / GIB:.1f} GiB, {free / GIB:.1f} GiB are free"
    return [Problem("memory", what, "fewer replicas, or smaller kv_tokens")]


def _gpu_memory(plan: Plan) -> list[Problem]:
    """Weights must fit the free memory of each GPU, shared ones once per worker on them."""
    free = hardware.gpu_free_mib()
    problems = []
    need: dict[int, float] = {}
    for w in plan.workers:
        ranks = w.tp if w.dp_attention else w.tp * w.dp
        for gpu in w.gpus if w.local else ():
            need[gpu] = need.get(gpu, 0) + plan.model.weight_bytes * max(w.dp, 1) / ranks
    for gpu, weight in need.items():
        if gpu < len(free) and weight > free[gpu] * 2**20:
            what = f"weights take {weight / GIB:.0f} GiB, {free[gpu] / 1024:.0f} GiB are free"
            problems.append(
                Problem(f"GPU {gpu}", what, "free it, or raise tp", fatal=not _ep(plan))
            )
    if free and any(g >= len(free) for g in need):
        what = f"the plan uses GPU {max(need)}, this machine has {len(free)}"
        repair = "fewer replicas, or share: `gpus: [0]` on each role (launch/one-gpu.yaml)"
        problems.append(Problem("GPUs", what, repair))
    return problems


def _ep(plan: Plan) -> bool:
    """With expert parallelism the estimate above (whole copies per DP rank) is too high."""
    return any(w.ep > 1 for w in plan.workers)


def _is_ours(address: str) -> bool:
    """False for an address that this machine does not have (a dry run of somebody's plan)."""
    return is_free(0, address)


def shown(problems: Sequence[Problem]) -> str:
    """Problems as lines, the fatal ones first."""
    ordered = sorted(problems, key=lambda p: not p.fatal)
    return "\n".join(f"{'error' if p.fatal else 'note'}: {p}" for p in ordered)
