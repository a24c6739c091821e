"""Which systems a deployment file lets one ask about, and against what each is measured.

Pure: a deployment file's contents in, questions out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from toolkit.bench.suite.expert_questions import (
    PlacedExperts,
    ask_placement,
    ask_relocation,
)
from toolkit.bench.suite.question import (
    BASE,
    BE_E2E,
    E2E,
    LS_TTFT,
    THROUGHPUT,
    TPOT,
    TTFT,
    Asked,
    Changes,
    LeftOut,
    Question,
    SuiteArm,
)
from toolkit.bench.suite.variants import ranks_of, replicas_of, role_of, router_of
from toolkit.policies import BALANCERS

CHUNKS = (512,)
"""Of the alternative to stops between layers: latency-sensitive prompts first, and best-effort ones
in chunks that are over soon. Each takes starts of its own."""
NO_PROFILE = "no profile: toolkit profile --deployment FILE --out FOLDER, then router.profile"
NOT_PLACED = PlacedExperts(why=NO_PROFILE)
_BARE: Changes = {
    "restart": {"max_restarts": 0},
    "capture_experts": False,
    "prefill": {"preempt": None},
    "decode": {"preempt": None, "stages": None, "relocate": False, "expert_placement": None},
    "router": {
        "profile": None, "tau": None, "refit_on_drift": None, "classes": {}, "rebalance": False,
        "dispatch": "late", "decode_policy": "shortest_queue",
    },
}  # fmt: skip
"""Nothing of ours but late dispatch, and no worker that keeps experts for somebody. Who dies is no
result, so there is no second try: an arm that cannot start here says so soon."""


def questions_for(
    document: Mapping[str, Any],
    chunks: Sequence[int] = CHUNKS,
    placed: PlacedExperts = NOT_PLACED,
) -> Asked:
    """All that can be asked of the deployment that the file describes. `chunks`: of prompts that
    are not stopped between layers, the best of which is the alternative. `placed`: experts, by the
    file's profile.

    Raises:
        ValueError: nothing can be.
    """
    router = router_of(document)
    if document.get("mode", "pd") != "pd" or router.get("kind", "toolkit") != "toolkit":
        raise ValueError("the suite is for prefill and decode workers behind this project's router")
    decode = {**_BARE["decode"], "replicas": replicas_of(document)}
    asked = Asked({BASE: {**_BARE, "decode": decode}})
    others = tuple(
        SuiteArm(name, BASE, {"dispatch": "late", "decode": name})
        for name in (*BALANCERS, *(f"pooled@{name}" for name in BALANCERS))
    )
    queue = others[0]
    late = SuiteArm("late dispatch", BASE, {"dispatch": "late", "decode": "shortest_queue"})
    early = SuiteArm("both chosen at once", BASE, {**queue.policies, "dispatch": "concurrent"})
    asked.questions.append(
        Question(
            "late dispatch",
            late,
            (early,),
            E2E,
            TTFT,
            {"router": {"dispatch": "late"}},
            {"router": {"dispatch": "concurrent"}},
        )
    )
    _ask_balance(document, asked, others)
    _ask_experts(document, asked, others)
    _ask_preemption(asked, chunks)
    _ask_moves(document, asked, queue)
    _ask_stages(document, asked, queue)
    _ask_draft(document, asked, queue)
    ask_relocation(document, asked, queue, placed)
    ask_placement(document, asked, queue, placed)
    return asked


def _ask_balance(document: Mapping[str, Any], asked: Asked, others: tuple[SuiteArm, ...]) -> None:
    if ranks_of(document) < 2:
        asked.left_out.append(LeftOut("level KV", "there is one decode rank: nothing to balance"))
        return
    level = SuiteArm("level", BASE, {"dispatch": "late", "decode": "level"})
    asked.questions.append(
        Question(
            "level KV",
            level,
            others,
            THROUGHPUT,
            TTFT,
            {},
            {},
        )
    )


def _ask_experts(document: Mapping[str, Any], asked: Asked, others: tuple[SuiteArm, ...]) -> None:
    profile, servers = router_of(document).get("profile"), replicas_of(document)
    if profile is None:
        asked.left_out.append(LeftOut("expert locality", NO_PROFILE))
        return
    if servers < 2 and role_of(document, "decode").get("dp_attention", False):
        why = "there is one decode server, whose ranks share their experts"
        asked.left_out.append(LeftOut("expert locality", why))
        return
    asked.variants["experts"] = {"router": {"profile": profile}}
    eldr = SuiteArm("eldr", "experts", {"dispatch": "late", "decode": "eldr"})
    asked.questions.append(
        Question(
            "expert locality",
            eldr,
            others,
            TPOT,
            TTFT,
            {"router": {"profile": profile}},
            {"router": {"profile": None, "tau": None, "refit_on_drift": None}},
        )
    )


def _ask_preemption(asked: Asked, chunks: Sequence[int]) -> None:
    """All in the order of classes; one stops between layers, the others between short chunks."""
    policies = {"dispatch": "late", "decode": "shortest_queue"}
    asked.variants["stops"] = {"prefill": {"preempt": "strict"}}
    others = []
    for chunk in chunks:
        name = f"chunks of {chunk}"
        asked.variants[name] = {
            "prefill": {"preempt": {"pauses": 0}, "args": {"chunked-prefill-size": chunk}}
        }
        others.append(SuiteArm(f"classes first, {name}", name, policies))
    asked.questions.append(
        Question(
            "preempted prompts",
            SuiteArm("stops between layers", "stops", policies),
            tuple(others),
            LS_TTFT,
            BE_E2E,
            {"router": {"classes": {}}, "prefill": {"preempt": "strict"}},
            {"prefill": {"preempt": None}},
            "classes",
        )
    )


def _ask_moves(document: Mapping[str, Any], asked: Asked, queue: SuiteArm) -> None:
    if ranks_of(document) < 2:
        asked.left_out.append(LeftOut("moves", "there is one decode rank: nowhere to move"))
        return
    asked.variants["moves"] = {"router": {"rebalance": True}}
    moves = SuiteArm("moves", "moves", queue.policies)
    asked.questions.append(
        Question(
            "moves",
            moves,
            (queue,),
            E2E,
            TPOT,
            {"router": {"rebalance": True}},
            {"router": {"rebalance": False}},
        )
    )


def _ask_stages(document: Mapping[str, Any], asked: Asked, queue: SuiteArm) -> None:
    stages = role_of(document, "decode").get("stages")
    if not stages:
        why = "the file has no decode.stages: toolkit profile stages proposes some"
        asked.left_out.append(LeftOut("stages", why))
        return
    kept = {"stages": deepcopy(stages), "replicas": None}
    own = router_of(document).get("rebalance")
    rebalance = {"rebalance": deepcopy(own) if isinstance(own, Mapping) else {}}
    asked.variants["stages"] = {"decode": kept, "router": rebalance}
    staged = SuiteArm("stages", "stages", queue.policies)
    asked.questions.append(
        Question(
            "stages",
            staged,
            (queue,),
            TPOT,
            TTFT,
            {"decode": kept, "router": rebalance},
            {"decode": {"stages": None, "replicas": replicas_of(document)}},
        )
    )


def _ask_draft(document: Mapping[str, Any], asked: Asked, queue: SuiteArm) -> None:
    section = document.get("speculative")
    if section is None:
        why = "the file has no draft: section `speculative`"
        asked.left_out.append(LeftOut("speculative decoding", why))
        return
    asked.variants["no draft"] = {"speculative": None}
    asked.questions.append(
        Question(
            "speculative decoding",
            SuiteArm("with the draft", BASE, queue.policies),
            (SuiteArm("without a draft", "no draft", queue.policies),),
            E2E,
            TTFT,
            {"speculative": deepcopy(section)},
            {"speculative": None},
        )
    )
