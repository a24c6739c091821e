"""How the router chooses workers: when, by which policies, and whom it moves later."""

from typing import Annotated, Literal, get_args

from toolkit.settings.router.classes import Classes
from toolkit.settings.router.rebalance import Rebalance
from toolkit.settings.rules import BOTH, EVERY, EXPERTS, OURS, PARKS, PD, KeyRule
from toolkit.settings.section import Section, Share, Short, key

Dispatch = Literal["late", "concurrent"]
FirstTokenFrom = Literal["prefill", "decode"]
MovesBy = Literal["auto", "direct", "replay"]
MOVES_BY: tuple[MovesBy, ...] = get_args(MovesBy)


class Choosing(Section):
    """Decode policies `br0`, `brh@PREDICTOR`, `level` and `composed` keep finished prefills in a
    pool and bind them in rounds, which needs `dispatch` late. Otherwise (concurrent, plain workers)
    they choose for each request as it comes. `gimbal@KV:DIFF:LOAD` serves either side and wants
    requests that say whose they are (`user`, `session_id` or `routing_key` in the body, or header
    `x-smg-routing-key`). `moves`: see `toolkit.router.moves`."""

    dispatch: Dispatch = key(
        "late",
        "`late`: choose the decode worker after the prefill; `concurrent`: choose both at once",
        EVERY,
    )
    first_token: FirstTokenFrom = key(
        "prefill",
        "whose first token a stream begins with: `prefill`: the prefill worker's, as soon as it is "
        "there; `decode`: its decode worker's, which is the same",
        PARKS,
    )
    prefill_policy: str = key(
        "round_robin",
        "who picks the prefill worker",
        KeyRule(BOTH.kinds, plain="set decode_policy, which plain uses"),
    )
    decode_policy: str = key("shortest_queue", "who picks the decode worker", BOTH)
    profile: str | None = key(
        None, "folder of `toolkit profile`, for expert locality; `embedded`: the shipped one", EVERY
    )
    tau: Share = key(0.1, "width of ELDR's locality band in cosine", EXPERTS)
    refit_on_drift: bool = key(
        True, "new centroids when the traffic's experts have changed", EXPERTS
    )
    record: str | None = key(
        None,
        "file to which times and lengths of all requests go, for plan and simulate",
        KeyRule(("toolkit",), "only our router records: use kind: toolkit, or remove it"),
    )
    record_decisions: str | None = key(
        None,
        "where every decision goes, for `toolkit replay`: `FILE.decode.jsonl` and "
        "`FILE.prefill.jsonl`, 1 GiB each at most",
        OURS,
    )
    seed: int = key(0, "seed of policies that draw by chance", OURS)
    classes: Classes | None = key(
        None,
        "how latency-sensitive and best-effort requests are told apart; `{}`: by what they say "
        "themselves",
        OURS,
    )
    moves: MovesBy = key(
        "auto",
        "how running requests get from one decode worker to another: `direct` (it sends their KV), "
        "`replay` (they are prefilled again), `auto` (directly where possible)",
        KeyRule(("toolkit",), plain="plain workers move requests by replay alone: remove it"),
    )
    rebalance: Annotated[Rebalance | None, Short("on", bool)] = key(
        None,
        "requests move between decode workers while they run; `true`: with the defaults, as with "
        "`decode.stages` in any case; `false`: never",
        KeyRule(("toolkit",), plain=PD),
    )
