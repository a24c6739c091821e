"""Questions about where experts lie: those that move, and those that start where a profile says.

Pure. All arms have the file's redundant experts and the same choice of decode ranks. Experts move
on decode servers alone; what the file says of prefill stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolkit.bench.suite.question import (
    BASE,
    GAP,
    TPOT,
    TTFT,
    Asked,
    Changes,
    LeftOut,
    MovingExperts,
    Question,
    SuiteArm,
)
from toolkit.bench.suite.variants import role_of, router_of
from toolkit.settings.flags import flag_of

if TYPE_CHECKING:
    from toolkit.profile_folder.schema import PlacementKind

EPLB, INTERVAL, CHUNK = (
    "enable-eplb",
    "eplb-rebalance-num-iterations",
    "eplb-rebalance-layers-per-chunk",
)
BUFFER = "expert-distribution-recorder-buffer-size"
LOCATION, OVERLAP = "init-expert-location", "enable-two-batch-overlap"
EVERY = 1000
"""SGLang's own interval, in forwards."""
OFTENER = 4
"""The other interval is so many times as short: traffic that drifts is followed sooner, and ranks
stand still more often."""
LAYERS = 8
"""Moved in one forward, as SGLang's guide to large-scale EP has it: else all layers hold a step up
at once."""
LINEAR: PlacementKind = "linear"
BY_LOAD: PlacementKind = "eplb"
BY_AFFINITY: PlacementKind = "joint"
"""Kinds of placements that a profile gives: none, SGLang's own, by load; ours, by load and by which
expert a token goes to next."""


@dataclass(frozen=True, slots=True)
class PlacedExperts:
    """`files`: by kind, what `init-expert-location` loads. `why`: there are none. `loads`: by kind,
    busiest rank's load / mean and share of hops between ranks, on tokens of the profile that no
    placement was fitted to."""

    files: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    loads: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def ask_relocation(
    document: Mapping[str, Any], asked: Asked, queue: SuiteArm, placed: PlacedExperts
) -> None:
    """Experts that `toolkit relocate` moves, against SGLang's EPLB and experts that stay."""
    if why := _why_not(document):
        asked.left_out.append(LeftOut("relocated experts", why))
        return
    args = _Args(document)
    still = args.without(EPLB)  # its other flags do nothing then
    every = int(args.own(INTERVAL) or EVERY)
    asked.variants["relocated"] = {"decode": {"relocate": True, "args": still}}
    asked.moving["relocated"] = MovingExperts(every, relocates=True)
    others = _staying(document, asked, queue, placed, still)
    for often in dict.fromkeys((every, max(1, every // OFTENER))):
        name = f"EPLB every {often}"
        flags = {EPLB: True, INTERVAL: often, CHUNK: int(args.own(CHUNK) or LAYERS)}
        if kept := args.own(BUFFER):
            flags[BUFFER] = min(int(kept), often)  # else SGLang refuses to start
        asked.variants[name] = {"decode": {"args": args.having(flags)}}
        asked.moving[name] = MovingExperts(often, relocates=False)
        others.append(SuiteArm(name, name, queue.policies))
    asked.questions.append(
        Question(
            "relocated experts",
            SuiteArm("relocated", "relocated", queue.policies),
            tuple(others),
            TPOT,
            GAP,
            asked.variants["relocated"],
            {"decode": {"relocate": False}},
            takes_best=True,
            beside=f"toolkit relocate --every {every}",
            settle=every,
        )
    )


def ask_placement(
    document: Mapping[str, Any], asked: Asked, queue: SuiteArm, placed: PlacedExperts
) -> None:
    """Experts that start where our profile says, against two-batch overlap, which hides what they
    send, and against placements that know less. Where the file has EPLB, all arms have it."""
    if why := _why_not(document) or placed.why:
        asked.left_out.append(LeftOut("expert placement", why))
        return
    args = _Args(document)
    ours, policies = _at(args, placed.files[BY_AFFINITY]), queue.policies
    others = _staying(document, asked, queue, placed, {})
    if role_of(document, "decode").get("expert_placement"):
        profile: Changes = {"router": {"profile": router_of(document)["profile"]}}
        clusters = {"expert_placement": "clusters", "args": args.without(LOCATION)}
        ours, policies = {**profile, "decode": clusters}, {**policies, "decode": "eldr"}
        # It places for the requests that `eldr` sends, which may gain without any placement.
        asked.variants.setdefault("experts", profile)
        others.append(SuiteArm("eldr", "experts", policies))
    asked.variants["placed"] = ours
    # Whichever the file does not have: the other one is in every arm.
    has = bool(args.own(OVERLAP))
    word = "without overlap" if has else "with overlap"
    flip: Changes = {"decode": {"args": args.having({OVERLAP: None if has else True})}}
    asked.variants[word], asked.variants[f"placed, {word}"] = flip, _both(ours, flip)
    asked.questions.append(
        Question(
            "expert placement",
            SuiteArm("placed by the profile", "placed", policies),
            (*others, SuiteArm(word, word, queue.policies)),
            TPOT,
            TTFT,
            ours,
            {"decode": {"expert_placement": None, "args": args.without(LOCATION)}},
            also=(SuiteArm(f"placed, {word}", f"placed, {word}", policies),),
            takes_best=True,
            settle=int(args.own(INTERVAL) or EVERY),  # as of the arms that both questions have
        )
    )


def _why_not(document: Mapping[str, Any]) -> str:
    decode = role_of(document, "decode")
    tp, ep = int(decode.get("tp") or 1), int(decode.get("ep") or 1)
    if ep < 2:
        return "decode.ep is 1: each rank has all experts, or the model has none"
    if ep != tp:
        return f"experts are placed where decode.ep is decode.tp ({tp}), not {ep}"
    if document.get("speculative") is not None:
        return "placed experts were not tried with a draft: leave `speculative` out to ask"
    return ""


def _staying(
    document: Mapping[str, Any],
    asked: Asked,
    queue: SuiteArm,
    placed: PlacedExperts,
    still: Mapping[str, Any],
) -> list[SuiteArm]:
    """Experts that start in their order, where the file has them, and where their load is even by
    the profile. `still`: flags that keep them there."""
    args = _Args(document)
    # Not the same arms where the file has EPLB, and only one question takes it away.
    more = "" if still or not args.own(EPLB) else ", then EPLB"
    found = []

    def arm(name: str, changes: Changes) -> None:
        flags = {**still, **changes["decode"]["args"]}
        variant = BASE
        if args.changed_by(flags):
            variant = name
            asked.variants[name] = {"decode": {**changes["decode"], "args": flags}}
        found.append(SuiteArm(name, variant, queue.policies))

    arm(f"experts in order{more}", {"decode": {"args": args.without(LOCATION)}})
    if args.own(LOCATION):
        arm(f"placed by the file{more}", {"decode": {"args": {}}})
    if placed.files:
        arm(f"placed by load{more}", _at(args, placed.files[BY_LOAD]))
    return found


def _at(args: _Args, file: str) -> Changes:
    """Experts start as the file says."""
    return {"decode": {"expert_placement": None, "args": args.having({LOCATION: file})}}


def _both(one: Changes, other: Changes) -> Changes:
    """Of two that change a decode role's flags."""
    decode = {**one["decode"], "args": {**one["decode"]["args"], **other["decode"]["args"]}}
    return {**one, "decode": decode}


class _Args:
    """SGLang's flags of the decode role, as the file spells them."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._given = role_of(document, "decode").get("args") or {}
        self._keys = {flag_of(key): key for key in self._given}

    def own(self, flag: str) -> Any:
        """What the file says; None where it does not."""
        return self._given.get(self._keys.get(flag, flag))

    def having(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        return {self._keys.get(flag, flag): value for flag, value in flags.items()}

    def without(self, *flags: str) -> dict[str, Any]:
        return self.having(dict.fromkeys(flags))

    def changed_by(self, flags: Mapping[str, Any]) -> bool:
        return any(self._given.get(key) != value for key, value in flags.items())
