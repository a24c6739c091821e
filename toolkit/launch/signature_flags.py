"""Do the prefill workers record signatures? What a deployment file says against it.

Signatures come from SGLang's routed-experts capturer and lie beside the KV pool, a row for a slot
(`patches/experts/signature.py`). Where the capturer keeps wrong experts is in
`toolkit.contract.capturing`.
"""

from collections.abc import Sequence

from toolkit.contract.variables import LAYERS_VARIABLE
from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan, WorkerPlan

RECORD = "enable-return-routed-experts"
HIERARCHICAL = ("enable-hierarchical-cache", "enable-hicache")
"""Two names of one flag, the second one from SGLang 0.5.23 on."""


def recording(plan: Plan) -> list[Problem]:
    """Problems with the prefill workers of a plan with a profile; a note is not fatal."""
    # Replicas and their nodes differ in ports and addresses only.
    worker = next(w for w in plan.workers if w.role == "prefill")
    flags = _flags(worker.argv)
    problems = _switched_off(plan, worker, flags)
    if not flags.keys().isdisjoint(HIERARCHICAL):
        what = "what comes back from host memory has no experts: such prompts are routed by load"
        repair = "raise prefill.kv_tokens, so that fewer prompts come back from there"
        problems.append(
            Problem("prefill.args.enable-hierarchical-cache", what, repair, fatal=False)
        )
    return problems


def _flags(argv: Sequence[str]) -> dict[str, str]:
    """Flag (without dashes) -> its value, "" for a bare one."""
    pairs = zip(argv, (*argv[1:], "--"), strict=True)
    return {a[2:]: "" if b.startswith("--") else b for a, b in pairs if a.startswith("--")}


def _switched_off(plan: Plan, worker: WorkerPlan, flags: dict[str, str]) -> list[Problem]:
    problems = []
    if RECORD not in flags:
        what = "is switched off, but router.profile needs it"
        problems.append(Problem(f"prefill.args.{RECORD}", what, "remove the line"))
    wanted = ",".join(map(str, plan.locality.layers)) if plan.locality else ""
    found = worker.env.get(LAYERS_VARIABLE)
    if found != wanted:
        what = f"{LAYERS_VARIABLE} is {found}, the profile's layers are {wanted}"
        problems.append(Problem("env", what, "remove it: router.profile sets it"))
    return problems
