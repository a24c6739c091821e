"""What a host and the decider say to each other.

A host is whoever has the clock, the sockets and the workers: the router, the simulator, a test. It
tells the decider what has happened, and carries out what the decider answers. A request is a number
of the host's choice; a rank is its key, (worker's name, DP rank). Times are monotonic seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from toolkit.contract.heartbeat import Beat
    from toolkit.decide.poison import Strike
    from toolkit.decide.ranks import RankState
    from toolkit.decide.reservation import Reservation
    from toolkit.policies.base import Policy, RequestView
    from toolkit.policies.following import Following
    from toolkit.policies.stages.layout import Layout
    from toolkit.policies.stages.replanning import Replanner
    from toolkit.policies.stages.running import Why
    from toolkit.policies.support.expert_locality import Centroids
    from toolkit.policies.support.expert_map import ExpertMap

Key = tuple[str, int]
Shape = Literal["split", "one_token", "prefill", "plain"]
"""How a request runs: prefilled on one worker and decoded on another; the same, but one whose
prefill worker may answer it all; on a prefill worker alone; on a plain worker."""
FailureKind = Literal[
    "lost", "stuck", "silent", "unreached", "answer", "transfer", "busy", "early", "closed"
]
"""Why an attempt failed: its connection broke or the worker was given up; a rank of the worker was
stuck; the worker fell silent; it could not be connected to; it answered 500; it answered that KV
did not get across; it answered that it is full (429, 503); its stream ended before its end; the
host closed it."""
MoveHow = Literal["moved", "kept", "ended", "lost"]
Outcome = Literal["served", "moved", "failed", "unknown", "unsent"]
"""How a call to a worker ended: the client has its whole answer; it went on elsewhere; the worker
failed; nothing is known of the worker (its client went away, say); it was not sent after all."""


# Of requests, to the decider.


class Arrive(Struct, frozen=True):
    """A request is to run. `deadline`: when its client gives up. `digest` of what it asks for:
    needed while requests are in quarantine."""

    request: int
    view: RequestView
    shape: Shape
    streams: bool
    arrived: float
    deadline: float
    digest: bytes = b""


class NextAttempt(Struct, frozen=True):
    """The next attempt of a request that the decider lets run again (`Again`), or that was moved.
    `view`: with the `generated` tokens as part of the prompt. `place`: kept for it on a rank."""

    request: int
    view: RequestView
    generated: int = 0
    moved: bool = False
    place: Reservation | None = None


class Prefilled(Struct, frozen=True):
    """The prefill is done, or so nearly that its decode rank is to be chosen. `view`: with what it
    found out; None: it may be done, and nobody will say so."""

    request: int
    view: RequestView | None


class Proven(Struct, frozen=True):
    """A worker has computed something of the request. `decode`: its answer is the client's."""

    request: int
    reservation: Reservation
    decode: bool


class CallReleased(Struct, frozen=True):
    """A call is over. `answered`: below 500. `finished`: by itself or by its limit."""

    reservation: Reservation
    outcome: Outcome
    answered: bool
    generated: int = 0
    finished: bool = False


class Failed(Struct, frozen=True):
    """An attempt failed on `worker`'s side; its calls were released. `begun`: when that worker got
    the request; `proven`: it had given a token of it. `suspects`: workers that the next attempt had
    better do without."""

    request: int
    worker: str
    kind: FailureKind
    begun: float
    proven: bool
    suspects: frozenset[str]
    digest: bytes


class TokensCame(Struct, frozen=True):
    """Tokens that have come of streams since the last such message, by the calls that they came
    from: those whose `Reservation.counts` says that somebody wants to know."""

    tokens: tuple[tuple[Reservation, int], ...]


class RejoinedCall(NamedTuple):
    """A call that runs. `answers`: its answer is the client's."""

    rank: Key
    answers: bool
    proven: bool


class RejoinedMove(NamedTuple):
    """A move that is under way. `call`: its place, by its place among the calls; `ask`: of who
    asked, or 0."""

    call: int
    why: Why
    ask: int


class Rejoined(Struct, frozen=True):
    """A request that was there before the decider was, or its host: another one had it. Its fields
    are those of `Arrive`, and of the present attempt those of `NextAttempt`; `attempts`: before it.
    `begins`: it waits for its first worker; those that have one are told before. Is answered with
    `Restored`."""

    request: int
    view: RequestView
    shape: Shape
    streams: bool
    arrived: float
    deadline: float
    generated: int
    attempts: int
    begins: bool
    calls: tuple[RejoinedCall, ...]
    move: RejoinedMove | None = None


class SeenRequest(NamedTuple):
    """A request that runs: tokens of its answer that its client has, and why it could not go on
    elsewhere now; empty where it could."""

    request: int
    generated: int
    stays: str


class RunningSeen(Struct, frozen=True):
    """All that runs: the answer to `Look`."""

    requests: tuple[SeenRequest, ...]


class StagesPlanned(Struct, frozen=True):
    """Better stages for what decodes: the answer to `PlanStages`."""

    layout: Layout


class MoveAsked(Struct, frozen=True):
    """Somebody, `ask`, wants a request moved: to the one of `targets` that has the most KV free,
    or (None) to whom the policy takes."""

    ask: int
    request: SeenRequest
    targets: tuple[Key, ...] | None


class MoveEnded(Struct, frozen=True):
    """What became of a `MoveOrder`; its place was used or given back.

    - `moved`: the stream goes on at `rank`, after `stall_s`, with `tokens` of KV
    - `kept`: it stays where it was, `reason` says why; `again`: it may be moved in the host's way
      of that number
    - `ended`, `lost`: it came to its end first; its client got an error
    """

    request: int
    how: MoveHow
    rank: Key | None = None
    stall_s: float = 0.0
    tokens: int = 0
    generated: int = 0
    again: int = 0
    reason: str = ""


class RequestEnded(Struct, frozen=True):
    """A request is over; its calls were released. `served`: its client has the whole answer."""

    request: int
    served: bool


# Of workers, to the decider.


class WorkerGreeted(Struct, frozen=True):
    """A worker says what it is. `slots`, `reserve`: see `WorkerState`. `anew`: another process than
    before; what ran on that one was given up."""

    worker: str
    slots: int = 0
    reserve: int = 0
    dp_attention: bool | None = None
    prefill_only: bool = False
    anew: bool = False


class WorkerShared(Struct, frozen=True):
    """So many routers, this one among them, send requests to a worker. Each may have its part of
    the prefills that may be parked there."""

    worker: str
    routers: int


class WorkerWarned(Struct, frozen=True):
    """Another router has ejected a worker: it is to be probed here."""

    worker: str


class QuarantineTold(Struct, frozen=True):
    """Another router has a request in quarantine, for `left_s` from now on; what it saw, as in
    `Quarantined`."""

    digest: bytes
    strikes: tuple[tuple[Strike, str], ...]
    left_s: float


class WorkerHeard(Struct, frozen=True):
    """A worker gave a sign of life."""

    worker: str


class WorkerUp(Struct, frozen=True):
    """A worker takes requests. `tells_prefills`: it says when a prefill is done."""

    worker: str
    tells_prefills: bool = True


class WorkerHeldUp(Struct, frozen=True):
    """A worker takes no requests for the moment, and goes on with those that it has."""

    worker: str


class WorkerDown(Struct, frozen=True):
    """A worker takes no requests, and what it says of prefills may be missed."""

    worker: str


class WorkerDied(Struct, frozen=True):
    """A worker's processes are gone, or may as well be; `crashed`: it said so itself."""

    worker: str
    crashed: bool


class LoadRead(Struct, frozen=True):
    """A rank has published its load, the fields of `toolkit.decide.ledger`; None: nonsense."""

    rank: Key
    reading: dict[str, int] | None


class Stepped(Struct, frozen=True):
    """A rank did so many decode steps. `step_tokens`: that one of them gave a request in the mean,
    more than one where drafts are accepted."""

    rank: Key
    steps: int
    step_tokens: float = 1.0


class Beaten(Struct, frozen=True):
    """A rank's heartbeat."""

    rank: Key
    beat: Beat


class Hold(Struct, frozen=True):
    """An operator's order: these ranks get no new requests, or (`on` False) get some again."""

    ranks: tuple[Key, ...]
    on: bool


class Expected(Struct, frozen=True):
    """The launcher's word on a worker's return, as `Returns.told` takes it."""

    worker: str
    usual_s: float | None
    back_in_s: float | None


class Empty(Struct, frozen=True):
    """An operator's order: what runs on these ranks is to go on elsewhere, as it can; until `on`
    is False."""

    ranks: tuple[Key, ...]
    on: bool


class UsePolicy(Struct, frozen=True):
    """A policy for a side (prefill, decode), from now on. `following`: see `Chooser.use`."""

    side: str
    policy: Policy
    following: Following | None = None


class UseCentroids(Struct, frozen=True):
    """The decode policy follows experts by these centroids from now on."""

    centroids: Centroids | None


class UseMaps(Struct, frozen=True):
    """Where experts lie from now on, by server; see `ExpertLocality.maps`."""

    maps: Mapping[str, ExpertMap]


class UseDispatch(Struct, frozen=True):
    """From now on decode ranks are chosen after the prefill (`late`), or before it."""

    late: bool


class TimePassed(Struct, frozen=True):
    """Time has passed: `Decider.due` has come. `took_s`: what the host needed the last time, with
    all that followed from it."""

    took_s: float = 0.0


# From the decider.


class PrefillOrder(Struct, frozen=True):
    """Prefill the request there. `whole`: that worker answers all of it. `late`: its decode worker
    is chosen when it has run."""

    request: int
    rank: RankState
    reservation: Reservation
    whole: bool = False
    late: bool = True


class DecodeOrder(Struct, frozen=True):
    """Decode the request there (a plain worker does all of it)."""

    request: int
    rank: RankState
    reservation: Reservation


class Again(Struct, frozen=True):
    """Run the request again: answer with `NextAttempt`, or with `RequestEnded`."""

    request: int


class Refuse(Struct, frozen=True):
    """Give the request up, and answer with `RequestEnded`. `why`:

    - `failure`: its client gets what the failed attempt says
    - `quarantined`: workers that ran this very request failed a while ago
    - `poisonous`: `strikes` workers failed it one after the other
    - `budget`: too many others wait to be run again
    - `nobody`: no worker of the `role` is there; try again in `retry_after` seconds
    - `policy`: a policy failed, `text`; `cause` may hold anything
    """

    request: int
    why: Literal["failure", "quarantined", "poisonous", "budget", "nobody", "policy"]
    role: str = ""
    retry_after: int = 0
    strikes: int = 0
    text: str = ""
    cause: Exception | None = None


class Restored(Struct, frozen=True):
    """The places of a request that rejoined, in the order of its calls. `waits`: of the prefill
    that it waits for; None: it waits for none."""

    request: int
    reservations: tuple[Reservation, ...]
    waits: Reservation | None


class Quarantined(Struct, frozen=True):
    """The request is in quarantine; what it saw: (what happened, worker)."""

    request: int
    strikes: tuple[tuple[Strike, str], ...]
    digest: bytes


class Ejected(Struct, frozen=True):
    """The worker is left alone for a while: it failed requests."""

    worker: str


class PairLeftOut(Struct, frozen=True):
    """KV does not get from that prefill worker to that decode worker, though both are well with
    others: no request goes that way for `seconds`."""

    prefill: str
    decode: str
    seconds: float


class WorkerStuck(Struct, frozen=True):
    """A rank of the worker is stuck: its requests are to be given up."""

    worker: str
    rank: RankState


class HealthChanged(Struct, frozen=True):
    """Some worker's health, or a rank's, is not what it was. `goes_on`: it was stuck."""

    worker: str
    rank: RankState | None = None
    goes_on: bool = False


class Look(Struct, frozen=True):
    """Say what runs: answer with `RunningSeen`."""


class MoveOrder(Struct, frozen=True):
    """Have the request go on on that rank, in the host's way of number `way` or a later one;
    answer with `MoveEnded`. `reservation`: its place there. `ask`: of who asked, or 0. `room`: KV
    tokens that are free there beside that place, infinite where nobody knows."""

    request: int
    rank: RankState
    reservation: Reservation
    why: Why
    ask: int
    way: int
    room: float


class MoveKept(Struct, frozen=True):
    """A request that was to be moved is not; `ended`: it came to its end before."""

    request: int
    ask: int
    why: Why
    reason: str
    ended: bool = False


class PlanStages(Struct, frozen=True):
    """Have `planner` plan stages for these (prompt, KV tokens) of all that decodes, not on the
    event loop; answer with `StagesPlanned` where it finds better ones."""

    planner: Replanner
    live: tuple[tuple[int, int], ...]
    layout: Layout
    move_s: float


class Restaged(Struct, frozen=True):
    """These are the stages from now on."""

    layout: Layout


class Waited(Struct, frozen=True):
    """A finished prefill was assigned after so long in the pool."""

    seconds: float


RequestMessage = (
    Arrive | NextAttempt | Prefilled | Proven | TokensCame | CallReleased | Failed | MoveEnded
    | RequestEnded | Rejoined
)  # fmt: skip
WorkerMessage = (
    WorkerGreeted | WorkerShared | WorkerWarned | WorkerHeard | WorkerUp | WorkerHeldUp | WorkerDown
    | WorkerDied | LoadRead | Stepped | Beaten
)  # fmt: skip
OperatorMessage = Hold | Empty | MoveAsked | UsePolicy | UseDispatch
Told = RunningSeen | QuarantineTold | StagesPlanned | UseCentroids | UseMaps | Expected | TimePassed
Message = RequestMessage | WorkerMessage | OperatorMessage | Told
RequestOrder = PrefillOrder | DecodeOrder | Again | Refuse | Restored
MoveDecision = Look | MoveOrder | MoveKept | PlanStages | Restaged
Noted = Quarantined | Ejected | PairLeftOut | Waited | MoveDecision
Order = RequestOrder | WorkerStuck | HealthChanged | Noted
