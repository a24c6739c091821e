"""Which systems a deployment file lets one ask about, and against what each is measured.

Pure: a deployment file's contents in, questions out. An arm is a variant of the file (which takes a
start of its own) and policies that the running router is switched to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

from toolkit.policies import BALANCERS
from toolkit.settings.systems import System

Changes = Mapping[str, Any]
"""Of a deployment file: a mapping changes the keys that it has, None takes one away."""
Traffic = Literal["plain", "classes"]
CHUNKS = (512,)
"""Of the alternative to stops between layers: latency-sensitive prompts first, and best-effort ones
in chunks that are over soon. Each takes starts of its own."""


@dataclass(frozen=True, slots=True)
class SuiteMetric:
    """A figure of a round. `klass`: of that class's requests alone."""

    key: str
    title: str
    klass: str = ""
    lower_is_better: bool = True


E2E = SuiteMetric("mean_e2e_latency_ms", "mean time of a whole answer")
TPOT = SuiteMetric("mean_tpot_ms", "mean time a token")
THROUGHPUT = SuiteMetric("output_throughput", "tokens a second", lower_is_better=False)
LS_TTFT = SuiteMetric("mean_ttft_ms", "latency-sensitive TTFT", "latency_sensitive")
BE_E2E = SuiteMetric("mean_e2e_latency_ms", "time of best-effort answers", "best_effort")
TTFT = SuiteMetric("mean_ttft_ms", "TTFT")


@dataclass(frozen=True, slots=True)
class SuiteArm:
    """`policies`: the body of `POST /admin/policy`."""

    name: str
    variant: str
    policies: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """Does the system pay? `metric` decides; `price` is shown beside it. `on`: what the deployment
    file says with it; `off`: without; but for its decode policy, which several of them have a say
    in (`written.chosen`)."""

    system: System
    ours: SuiteArm
    others: tuple[SuiteArm, ...]
    metric: SuiteMetric
    price: SuiteMetric
    on: Changes
    off: Changes
    traffic: Traffic = "plain"

    @property
    def arms(self) -> tuple[SuiteArm, ...]:
        return (self.ours, *self.others)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A system about which this file lets one ask nothing."""

    system: System
    why: str


@dataclass(slots=True)
class Asked:
    """`variants`: by name, what each changes of the file."""

    variants: dict[str, Changes] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


BASE = "base"
_BARE: Changes = {
    "capture_experts": False,
    "prefill": {"preempt": None},
    "decode": {"preempt": None, "stages": None, "relocate": False, "expert_placement": None},
    "router": {
        "profile": None, "tau": None, "refit_on_drift": None, "classes": {}, "rebalance": False,
        "dispatch": "late", "decode_policy": "shortest_queue",
    },
}  # fmt: skip
"""Nothing of ours but late dispatch, and no worker that keeps experts for somebody."""


def questions_for(document: Mapping[str, Any], chunks: Sequence[int] = CHUNKS) -> Asked:
    """All that can be asked of the deployment that the file describes. `chunks`: of prompts that
    are not stopped between layers, the best of which is the alternative.

    Raises:
        ValueError: nothing can be.
    """
    if document.get("mode", "pd") != "pd" or _router(document).get("kind", "toolkit") != "toolkit":
        raise ValueError("the suite is for prefill and decode workers behind this project's router")
    asked = Asked({BASE: {**_BARE, "decode": {**_BARE["decode"], "replicas": _replicas(document)}}})
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
    asked.left_out.append(
        LeftOut("relocated experts", "not asked yet: it needs expert-parallel servers on GPUs")
    )
    return asked


def _ask_balance(document: Mapping[str, Any], asked: Asked, others: tuple[SuiteArm, ...]) -> None:
    if _ranks(document) < 2:
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
    profile, servers = _router(document).get("profile"), _replicas(document)
    if profile is None:
        why = "no profile: toolkit profile --deployment FILE --out FOLDER, then router.profile"
        asked.left_out.append(LeftOut("expert locality", why))
        return
    if servers < 2 and _role(document, "decode").get("dp_attention", False):
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
    if _ranks(document) < 2:
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
    stages = _role(document, "decode").get("stages")
    if not stages:
        why = "the file has no decode.stages: toolkit profile stages proposes some"
        asked.left_out.append(LeftOut("stages", why))
        return
    kept = {"stages": deepcopy(stages), "replicas": None}
    own = _router(document).get("rebalance")
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
            {"decode": {"stages": None, "replicas": _replicas(document)}},
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


def changed(document: Mapping[str, Any], *changes: Changes) -> dict[str, Any]:
    """The file with these changes, one after the other."""
    found = deepcopy(dict(document))
    for each in changes:
        found = _merged(found, each)
    return found


def variant(document: Mapping[str, Any], asked: Asked, name: str) -> dict[str, Any]:
    """The file of a variant: the base's, and what it changes of that."""
    more = () if name == BASE else (asked.variants[name],)
    return changed(document, asked.variants[BASE], *more)


def _merged(old: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    found = dict(old)
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping) and value:
            before = found.get(key)
            found[key] = _merged(before if isinstance(before, Mapping) else {}, value)
        else:
            found[key] = deepcopy(value)
    return found


def _router(document: Mapping[str, Any]) -> Mapping[str, Any]:
    router = document.get("router") or {}
    return router if isinstance(router, Mapping) else {"kind": router}


def _role(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return document.get(name) or {}


def _replicas(document: Mapping[str, Any]) -> int:
    decode = _role(document, "decode")
    stages = decode.get("stages") or ()
    by_stages = sum(stage.get("replicas", 1) for stage in stages)
    return int(decode.get("replicas") or by_stages or 1)


def _ranks(document: Mapping[str, Any]) -> int:
    return _replicas(document) * int(_role(document, "decode").get("dp", 1))
