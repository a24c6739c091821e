"""Can the prefill workers record signatures? Flags of SGLang under which they would be wrong.

Signatures come from SGLang's routed-experts capturer and lie beside the KV pool, a row for a slot
(`patches/experts/signature.py`). What the capturer itself cannot do is in `capturing`. Checked
against SGLang 0.5.21; files are those of `sglang/srt`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.contract.capturing import SCATTERED
from toolkit.contract.variables import LAYERS_VARIABLE
from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan, WorkerPlan

RECORD = "enable-return-routed-experts"
HIERARCHICAL = ("enable-hierarchical-cache", "enable-hicache")
"""Two names of one flag, the second one from SGLang 0.5.23 on."""


@dataclass(frozen=True)
class FlagRule:
    """A flag (and its other names) under which signatures are wrong; `numbers` above 1 only."""

    names: tuple[str, ...]
    why: str
    repair: str
    numbers: bool = False


_SPLIT = "the rank that counts a prompt's experts sees only its own share of the tokens"

RULES = (
    FlagRule(
        ("pp-size", "pipeline-parallel-size"),
        "a pipeline stage sees the experts of its own layers only",
        "use tp for prefill",
        numbers=True,
    ),
    FlagRule(("attn-cp-size", "attention-context-parallel-size"), _SPLIT, "use tp", numbers=True),
    FlagRule(("enable-prefill-cp",), _SPLIT, "use tp"),
    FlagRule(
        ("enable-decoder-swa-bounded-replay",),
        "runs the last layers for the end of a prompt only",
        "leave it out",
    ),
)

GATHERED = ("none", *SCATTERED)
"""--moe-a2a-backend: the capturer puts the ranks' tokens together for these only
(state_capturer/routed_experts.py)."""


def recording(plan: Plan) -> list[Problem]:
    """Problems with the prefill workers of a plan with a profile; a note is not fatal."""
    # Replicas and their nodes differ in ports and addresses only.
    worker = next(w for w in plan.workers if w.role == "prefill")
    flags = _flags(worker.argv)
    problems = [
        *_switched_off(plan, worker, flags),
        *_rules(flags),
        *_exchange(worker, flags),
    ]
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


def _rules(flags: dict[str, str]) -> list[Problem]:
    problems = []
    for rule in RULES:
        name = next((name for name in rule.names if name in flags), None)
        if name is None or (rule.numbers and flags[name] in ("0", "1")):
            continue
        what = f"signatures would be wrong: --{name} {rule.why}"
        repair = f"{rule.repair}; or remove router.profile"
        problems.append(Problem(f"prefill.args.{name}", what, repair))
    return problems


def _exchange(worker: WorkerPlan, flags: dict[str, str]) -> list[Problem]:
    a2a = flags.get("moe-a2a-backend", "none")
    if a2a in GATHERED or worker.tp == 1:
        return []
    what = f"signatures would be wrong: under {a2a} SGLang mixes up the tokens of several ranks"
    repair = "use deepep; or remove router.profile"
    return [Problem("prefill.args.moe-a2a-backend", what, repair)]
