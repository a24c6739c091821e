"""Knobs of where experts lie: the placement, redundant experts, when they are moved."""

from typing import Any

from toolkit.launch.errors import LaunchError
from toolkit.launch.model import read_model
from toolkit.placement import Topology
from toolkit.plan.candidate import Candidate
from toolkit.plan.errors import PlanError
from toolkit.plan.expert_layout import (
    KINDS,
    LINEAR,
    LOCATION,
    NODES,
    PLANNED,
    REDUNDANT,
    Layouts,
    Memory,
    RelocationCost,
    lay_of,
)
from toolkit.plan.knob import Knob
from toolkit.plan.plain_data import arg_key
from toolkit.policies import follows_experts
from toolkit.settings.deployment import Deployment
from toolkit.settings.document import Document, get, put
from toolkit.simulate.costs import links_of
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.experts import SimulatedExperts

OFF = "off"
LOCAL = "eldr"
"""By whom requests are sent to their experts."""
EVERY = (1000, 3000, 10_000, 30_000)
"""Decode steps."""
FIRST = 3000
"""From where it is searched on: Gimbal's tau, and the command's own."""
MORE_SLOTS = (0, 1, 2, 4)
"""Of each GPU, for redundant experts."""


def layouts_of(
    deployment: Deployment,
    folder: str | None,
    cost: CostModel,
    moving: RelocationCost | None = None,
) -> Layouts:
    """Those of the deployment's decode servers. PlanError: nothing that could be searched would
    change anything. ProfileError: no profile, or a damaged one."""
    from toolkit.profile_folder import store

    decode = deployment.decode
    asked = "--placement search"
    if folder is None:
        raise PlanError(f"{asked} follows a profile: say which with --experts")
    if decode.ep < 2:
        raise PlanError(f"{asked} spreads experts over GPUs: decode.ep is {decode.ep}")
    if any(key.replace("_", "-") in (LOCATION, "enable-eplb") for key in decode.args):
        raise PlanError(f"{asked}: decode.args places experts already: remove {LOCATION} and EPLB")
    links = links_of(cost)
    if links is None and not _minds_experts(cost):
        raise PlanError(f"{asked}: --cost has neither per_distinct nor links: nothing would change")
    node = decode.ep // decode.nodes if links is None else min(links.gpus_per_node, decode.ep)
    try:
        topology = Topology(decode.ep, node)
    except ValueError as error:
        raise PlanError(f"{asked}: {error}") from error
    profile, arrays = store.read(folder)
    memory, weight = _weights(deployment)
    scattered = str(_arg(decode.args, "moe-a2a-backend") or "none") != "none"
    near = scattered and links is not None and links.replicas == "nearest"
    experts = SimulatedExperts.of_profile(folder)
    return Layouts(experts, profile, arrays, topology, near, moving, memory, weight)


def placing(own: Candidate, layouts: Layouts) -> list[Knob]:
    """Placement, redundant experts and when experts are moved, as far as these can be searched."""
    found = [_placement(own, layouts)]
    if layouts.memory is not None:
        found.append(_redundant(own, layouts, layouts.memory))
    if layouts.moving is not None and not why_not_moved(own, layouts):
        found.append(_every(own))
    return found


def why_not_nodes(own: Candidate, layouts: Layouts) -> str:
    """Why requests and experts are not laid together; empty where they are."""
    decode = own.deployment.decode
    router = own.deployment.router
    known = layouts.near and decode.dp_attention and decode.dp > 1 and decode.ep == decode.tp
    if not known or router.profile is None or router.dispatch != "late":
        return (
            "placement by nodes is not searched: it takes DP attention, ep = tp, an all-to-all "
            "(decode.args.moe-a2a-backend), router.profile, dispatch: late, and of --cost links "
            "with replicas: nearest"
        )
    if layouts.topology.nodes < 2:
        return "placement by nodes is not searched: all GPUs are in one node"
    return ""


def why_not_moved(own: Candidate, layouts: Layouts) -> str:
    """Why no experts are moved while they serve; empty where that is searched."""
    if layouts.moving is None:
        return (
            "toolkit relocate: traffic in the profile does not drift: leave it off (--expert-drift "
            "says how fast yours does)"
        )
    decode = own.deployment.decode
    if decode.ep != decode.tp:
        return f"toolkit relocate is not searched: it takes ep = tp ({decode.tp})"
    if layouts.expert_bytes is None:
        return "toolkit relocate is not searched: nobody knows what an expert weighs"
    return ""


def remarks(own: Candidate, layouts: Layouts, plan: Candidate) -> list[str]:
    """What is not searched and why, and what has to run beside the plan."""
    found = [why_not_nodes(own, layouts), why_not_moved(own, layouts)]
    if layouts.memory is None:
        found.append(
            "redundant experts are not searched: the model's config.json is not here, or does not "
            "say what one weighs"
        )
    lay = plan.lay
    if lay.every is not None:
        found.append(
            f"run beside it: toolkit relocate decode-0 --kind {lay.kind} --every {lay.every}; how "
            "traffic drifts is an assumption (--expert-drift)"
        )
    if lay.redundant != own.lay.redundant:
        found.append(
            f"redundant experts: {lay.redundant}, for which the KV pool of a rank has "
            f"{plan.fleet.decode.kv_tokens:,} tokens in place of {own.fleet.decode.kv_tokens:,}"
        )
    return [each for each in found if each]


def _minds_experts(cost: CostModel) -> bool:
    import numpy as np

    batch = np.array([8]), np.array([8000])
    return cost.decode_s(*batch, 100.0) != cost.decode_s(*batch, 50.0)


def _weights(deployment: Deployment) -> tuple[Memory | None, float | None]:
    try:
        model = read_model(deployment)
    except LaunchError:
        return None, None
    decode, weight, layers = deployment.decode, model.expert_bytes, model.moe_layers
    if weight is None or layers is None:
        return None, weight
    fp8 = "fp8" in str(_arg(decode.args, "kv-cache-dtype"))
    attention = decode.tp // decode.dp if decode.dp_attention else decode.tp
    kv = model.kv_bytes_on_gpu(1 if fp8 else model.weight_item, attention)
    return Memory(weight * layers * decode.ep / decode.tp, kv) if kv else None, weight


def _arg(args: dict[str, Any], name: str) -> Any:
    return args.get(name, args.get(name.replace("-", "_")))


def _with(document: Document, own: Candidate, kind: str, every: int | None) -> Document:
    decode = own.deployment.decode
    # Of a server that can move its experts the router knows where they lie, as the simulator's.
    known = decode.relocate or (kind != LINEAR and decode.ep == decode.tp)
    planned = {"placement": kind} | ({} if every is None else {"every": every})
    document = put(document, (PLANNED,), None if kind == LINEAR else planned)
    return put(document, ("decode", "relocate"), known or None)


def _placement(own: Candidate, layouts: Layouts) -> Knob:
    values = KINDS if why_not_nodes(own, layouts) else (*KINDS, NODES)

    # Where traffic drifts, a placement alone comes to nothing in the end.
    first = None if why_not_moved(own, layouts) else FIRST

    def write(document: Document, kind: str) -> Document:
        every = (lay_of(document).every or first) if kind not in (LINEAR, NODES) else None
        policy = get(document, "router", "decode_policy") or ""
        if kind == NODES and not (policy and follows_experts(policy)):
            # Alone it would only unbalance: requests have to be sent to their experts.
            document = put(document, ("router", "decode_policy"), LOCAL)
        return _with(document, own, kind, every)

    return Knob("experts", values, lambda document: lay_of(document).kind, write, ordered=False)


def _redundant(own: Candidate, layouts: Layouts, memory: Memory) -> Knob:
    gpus, experts = layouts.topology.gpus, layouts.experts.experts
    now, pool = own.lay.redundant, own.fleet.decode.kv_tokens
    least = -experts % gpus
    counts = {now, *(least + more * gpus for more in MORE_SLOTS)}

    def left(count: int) -> int:
        return memory.kv_tokens(pool, (count - now) // gpus)

    def fits(count: int) -> bool:
        try:
            layouts.topology.slots(experts, count)
        except ValueError:
            return False
        return left(count) > 0

    def write(document: Document, count: int) -> Document:
        kept = own.deployment.decode.kv_tokens if count == now else left(count)
        document = put(document, ("decode", "kv_tokens"), kept)
        return put(document, arg_key(document, "decode", REDUNDANT), count or None)

    values = tuple(sorted(count for count in counts if fits(count)))
    return Knob("redundant experts", values, lambda d: lay_of(d).redundant, write)


def _every(own: Candidate) -> Knob:
    def write(document: Document, value: Any) -> Document:
        every = None if value == OFF else value
        return _with(document, own, lay_of(document).kind, every)

    return Knob(
        "relocate every",
        (OFF, *EVERY),
        lambda document: lay_of(document).every or OFF,
        write,
        lambda document: lay_of(document).kind not in (LINEAR, NODES),
    )
