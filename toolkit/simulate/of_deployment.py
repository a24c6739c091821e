"""A deployment file as a simulated fleet."""

from typing import Any

from toolkit.launch.checks.waiting import PARKED
from toolkit.launch.errors import LaunchError
from toolkit.launch.model import read_model
from toolkit.settings.deployment import Deployment
from toolkit.settings.role import Role
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.fleet import (
    UNBOUNDED,
    DecodeFleet,
    Fleet,
    Machine,
    PrefillFleet,
    RouterFleet,
    StageFleet,
    Stopping,
    WorkerFleet,
)
from toolkit.simulate.of_draft import UNKNOWN, DraftCosts, drafting_of

CHUNK = 8192
"""SGLang's chunked-prefill-size on GPUs of 80 GB and more."""
RESERVED = 512
"""SGLang's num-reserved-decode-tokens."""
MOONCAKE = ("auto", "mooncake", "mooncake_tcp")
"""Transfer backends that are Mooncake; SGLang's own choice is."""
REPORT_S = 0.02
"""How old loads are that several routers read of a rank: about a decode step."""
CPU_HOP_S = 0.01
"""A message between processes that share busy cores. Measured on two: 20 to 30 ms from the end of
an answer to the next request at its decode rank, there and back."""


def fleet_of(
    deployment: Deployment,
    kv_tokens: int | None = None,
    slots: int | None = None,
    machine: Machine | None = None,
    draft: DraftCosts = UNKNOWN,
) -> Fleet:
    """What of it the simulator knows. `kv_tokens`, `slots`: of a rank that decodes, where the file
    leaves them to SGLang. `machine`: what its workers lose beside each other; nothing without one.
    `draft`: what is known of steps with one.

    SimulateError: a deployment that is not simulated, or a size that nobody says.
    """
    router = deployment.router
    if router.kind != "toolkit":
        raise SimulateError(f"router: {router.kind} is not simulated: toolkit is")
    drafting = drafting_of(deployment, draft)
    given = {
        "dispatch": router.dispatch,
        "prefill_policy": router.prefill_policy,
        "decode_policy": router.decode_policy,
        "first_token": router.first_token,
        "tau": router.said.get("tau"),
        "parked_per_prefill": router.parked_per_prefill,
        "park_timeout_s": router.park_timeout_s,
        "hop_s": CPU_HOP_S if deployment.device == "cpu" else None,
        "classes": True if router.classes is not None else None,
        "rebalance": router.rebalance,
        # Directly, where that is possible: as it is wherever there is a simulated line.
        "moves": "replay" if router.moves == "replay" else None,
        "routers": router.count,
        # Of the others' requests each knows what ranks say, a step later.
        "report_s": REPORT_S if router.count > 1 else None,
    }
    if deployment.mode == "pd":
        waiting = deployment.prefill.waiting
        if waiting.order != "fcfs" and not router.says("parked_per_prefill"):
            given["parked_per_prefill"] = PARKED
    described = RouterFleet.model_validate({key: x for key, x in given.items() if x is not None})
    if deployment.mode == "plain":
        worker = _worker(deployment, kv_tokens, slots)
        return Fleet(
            worker=worker, router=described, machine=machine or Machine(), drafting=drafting
        )
    prefill, decode = deployment.prefill, deployment.decode
    pool, running = _sizes("decode", decode, kv_tokens, slots)
    return Fleet(
        prefill=PrefillFleet(
            replicas=prefill.replicas * prefill.dp,
            chunk=_chunk(prefill),
            kv_tokens=prefill.kv_tokens or UNBOUNDED,
            waiting_age_s=_age(prefill),
            loop=_loop(deployment, prefill),
            preempt=_stopping(deployment, prefill),
            early_choice=prefill.early_choice,
            early_send=_sends_early(deployment),
        ),
        decode=DecodeFleet(
            **_ranks(deployment),
            dp_attention=decode.dp_attention,
            slots=running,
            kv_tokens=pool,
            reserve=_arg(decode, "num-reserved-decode-tokens", RESERVED),
            loop=_loop(deployment, decode),
            early_place=decode.early_place,
        ),
        router=described,
        machine=machine or Machine(),
        drafting=drafting,
    )


def _worker(deployment: Deployment, kv_tokens: int | None, slots: int | None) -> WorkerFleet:
    worker = deployment.worker
    pool, running = _sizes("worker", worker, kv_tokens, slots)
    return WorkerFleet(
        replicas=worker.replicas,
        dp=worker.dp,
        dp_attention=worker.dp_attention,
        slots=running,
        kv_tokens=pool,
        chunk=_chunk(worker),
        # SGLang turns it off where there is a draft (arg_groups/speculative_hook.py).
        mixed=deployment.speculative is None and _arg(worker, "enable-mixed-chunk", False),
        waiting_age_s=_age(worker),
        loop=_loop(deployment, worker),
        conservativeness=_arg(worker, "schedule-conservativeness", 1.0),
        preempt=_stopping(deployment, worker),
    )


def _ranks(deployment: Deployment) -> dict[str, Any]:
    """Decode servers, their DP ranks and their stages. DP ranks that are of several stages are
    simulated as servers of their own, which they are but for their process."""
    decode, layout = deployment.decode, deployment.decode.layout
    if layout is None:
        return {"replicas": decode.replicas, "dp": decode.dp}
    servers = sum(stage.replicas for stage in decode.stages or ()) == decode.replicas
    dp = decode.dp if servers else 1
    stages = [StageFleet(upto=stage.upto, replicas=stage.replicas // dp) for stage in layout.stages]
    return {"replicas": layout.ranks // dp, "dp": dp, "stages": tuple(stages)}


def _sizes(name: str, role: Role, kv_tokens: int | None, slots: int | None) -> tuple[int, int]:
    """KV tokens and requests of a rank."""
    pool = role.kv_tokens or kv_tokens
    running = _per_rank(role) or slots
    if pool is None or running is None:
        what, flag = ("kv_tokens", "--kv-tokens") if pool is None else ("max_running", "--slots")
        raise SimulateError(
            f"{name}.{what} is not in the deployment file (SGLang finds it when it starts): say it "
            f"there, or with {flag} for one rank"
        )
    return pool, running


def _sends_early(deployment: Deployment) -> bool:
    """As `patches.pd.early_send` does: with Mooncake, and for models without a state beside their
    KV, as far as the model can be read here."""
    if deployment.transfer.backend not in MOONCAKE:
        return False
    try:
        return not read_model(deployment).keeps_state
    except LaunchError:
        return True


def _age(role: Role) -> float | None:
    return None if role.waiting.order == "fcfs" else role.waiting.age_s


def _per_rank(role: Role) -> int | None:
    """With DP attention `max_running` is the server's."""
    if role.max_running is None:
        return None
    return max(1, role.max_running // role.dp) if role.dp_attention else role.max_running


def _chunk(role: Role) -> int:
    """Of one DP rank: with DP attention SGLang shares the server's out."""
    size = int(_arg(role, "chunked-prefill-size", CHUNK * (role.dp if role.dp_attention else 1)))
    return max(1, size // role.dp) if role.dp_attention else size


def _stopping(deployment: Deployment, role: Role) -> Stopping | None:
    """As the worker would do it (`toolkit.launch.checks.preempting`)."""
    if role.preempt is None:
        return None
    if deployment.router.classes is None:
        raise SimulateError(
            "preempt: no request is best-effort or latency-sensitive without router.classes: set "
            "router: {classes: {}} or more of it, or remove preempt"
        )
    layers = layers_that_stop(deployment, role)
    return Stopping(rules=role.preempt, layers=layers, ahead=deployment.device != "cpu")


def layers_that_stop(deployment: Deployment, role: Role) -> int:
    """Between which its prompts can be stopped; 1: between chunks only. SimulateError: the model's
    config.json is not here, or does not say how many there are."""
    return 1 if _between_chunks(role) else _layers(deployment)


def _between_chunks(role: Role) -> bool:
    """Whether its prompts cannot be stopped between layers."""
    stages = max(int(_arg(role, name, 1)) for name in ("pp-size", "pipeline-parallel-size"))
    others = ("enable-lora", "lora-paths")
    return role.dp_attention or stages > 1 or any(_arg(role, name, None) for name in others)


def _layers(deployment: Deployment) -> int:
    try:
        found = read_model(deployment).layers
    except LaunchError as error:
        raise SimulateError(f"preempt: how many layers has the model? {error}") from error
    if found is None:
        raise SimulateError("preempt: the model's config.json says no num_hidden_layers")
    return found


def _loop(deployment: Deployment, role: Role) -> Any:
    # Where prompts are stopped the overlap scheduler is off (`toolkit.launch.command`).
    stops = role.preempt is not None and role is not deployment.decode
    if stops or _arg(role, "disable-overlap-schedule", False):
        return "plain"
    return "cpu" if deployment.device == "cpu" else "overlap"


def _arg(role: Role, name: str, default: Any) -> Any:
    for key in (name, name.replace("-", "_")):
        if key in role.args:
            return role.args[key]
    return default
