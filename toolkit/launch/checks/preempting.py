"""What keeps best-effort prompts from being stopped, as far as a deployment file shows it."""

from toolkit.contract.preempting import Preempting
from toolkit.contract.variables import DEVICE_VARIABLE, PAUSE_VARIABLE, PREEMPT_VARIABLE
from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan, WorkerPlan


def preempting(plan: Plan) -> list[Problem]:
    """Nobody would ever be best-effort; or prompts are stopped between chunks only, which is
    said."""
    told = (PREEMPT_VARIABLE, PAUSE_VARIABLE)
    first = {
        worker.role: worker
        for worker in reversed(plan.workers)
        if any(variable in worker.env for variable in told)
    }
    if not first:
        return []
    problems = []
    key = next(worker.section for worker in first.values())
    if plan.router is None or plan.router.kind != "toolkit":
        what = "only our router tells workers the class of a request"
        repair = "use router: {kind: toolkit, classes: {}}, or remove it"
        problems.append(Problem(f"{key}.preempt", what, repair))
    elif plan.router_config.get("classes") is None:
        what = "no request is best-effort or latency-sensitive without router.classes"
        repair = "set router: {classes: {}} or more of it, or remove it"
        problems.append(Problem(f"{key}.preempt", what, repair))
    for role, worker in first.items():
        if role != "decode":
            problems += _problem(worker, plan.model.keeps_state)
    return problems


def between_chunks(worker: WorkerPlan, keeps_state: bool = False) -> str:
    """Why its prompts are stopped between chunks only, as far as its arguments and its model show
    it; or ""."""
    flags = worker.flags
    reasons = {
        "with DP attention all ranks take each step together": worker.dp_attention,
        "the model keeps a state beside the KV of its tokens": keeps_state,
        "pipeline stages": bool(worker.pipelined),
        "context parallelism": flags.get("--attn-cp-size", "1") not in ("0", "1"),
        "adapters (LoRA)": "--enable-lora" in flags or "--lora-paths" in flags,
    }
    return ", ".join(reason for reason, there in reasons.items() if there)


def _problem(worker: WorkerPlan, keeps_state: bool) -> list[Problem]:
    found = between_chunks(worker, keeps_state)
    asked, key = Preempting.read(worker.env[PREEMPT_VARIABLE]), worker.section
    if "--enable-prefill-delayer" in worker.flags:
        # managers/prefill_delayer.py asserts it in the scheduler: the worker would never be ready.
        what = f"it needs the overlap scheduler, which {key}.preempt turns off"
        repair = "leave out one of the two"
        return [Problem(f"{key}.args.enable-prefill-delayer", what, repair)]
    if not found and asked is not None and asked.experts and worker.env[DEVICE_VARIABLE] != "cpu":
        what = "a GPU runs all experts of a layer in one kernel: prompts are stopped between layers"
        return [Problem(f"{key}.preempt.experts", what, "remove it", fatal=False)]
    if not found:
        return []
    what = f"prompts are stopped between chunks, not between layers: {found}"
    repair = f"make chunks smaller ({key}.args.chunked-prefill-size), or leave it so"
    return [Problem(f"{key}.preempt", what, repair, fatal=False)]
