"""What a relay and the decider process write to each other: the decider's messages and orders with
numbers in place of objects.

A request has the number that its relay gave it, and a call (a reservation on a rank) that of the
decider process. A worker is its place in the configuration. Times are the machine's monotonic
clock, which all processes share.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from toolkit.contract.events import Hello, Moving
from toolkit.contract.request_class import RequestClass
from toolkit.decide.messages import FailureKind, Key, MoveHow, Outcome, SeenRequest, Shape
from toolkit.policies.base import RequestView
from toolkit.router.asks import Ask

MEANING = 1
"""To be raised where a message keeps its form and means something else: processes of the one and of
the other code do not talk to each other then (`toolkit.router.processes.agreement`)."""

Place = tuple[int, int]
"""A rank: its worker's place in the configuration, and its DP rank."""


class WireView(Struct, array_like=True):
    """A `RequestView` without its signature, which only the decider process knows."""

    prompt_tokens: int
    cached_tokens: int
    blocks: tuple[int, ...]
    user: str | None
    label: str | None
    max_new_tokens: int
    min_new_tokens: int
    prompt_hash: int | None
    now: float
    request_class: RequestClass

    @classmethod
    def of(cls, view: RequestView) -> WireView:
        return cls(
            view.prompt_tokens, view.cached_tokens, view.blocks, view.user, view.label,
            view.max_new_tokens, view.min_new_tokens, view.prompt_hash, view.now,
            view.request_class,
        )  # fmt: skip

    def view(self) -> RequestView:
        return RequestView(
            self.prompt_tokens, self.cached_tokens, self.blocks, self.user, None, self.label,
            self.max_new_tokens, self.min_new_tokens, self.prompt_hash, self.now,
            self.request_class,
        )  # fmt: skip


# From a relay.


class WireJoined(Struct, array_like=True, tag=0):
    """A relay is there. `relay`: its place."""

    relay: int
    pid: int


class WireArrive(Struct, array_like=True, tag=1):
    """`m.Arrive`, and what the attempt's workers call it. `sampled`: whether its experts count for
    the drift of traffic."""

    request: int
    rid: str
    sampled: bool
    view: WireView
    shape: Shape
    streams: bool
    arrived: float
    deadline: float
    digest: bytes


class WireNextAttempt(Struct, array_like=True, tag=2):
    """`m.NextAttempt`. `place`: the call that is kept for it, or 0."""

    request: int
    rid: str
    view: WireView
    generated: int
    moved: bool
    place: int


class WirePrefilled(Struct, array_like=True, tag=3):
    """The prefill's worker has answered, and nobody has said that the prefill is done."""

    request: int


class WireProven(Struct, array_like=True, tag=4):
    """`m.Proven`."""

    request: int
    call: int
    decode: bool


class WireReleased(Struct, array_like=True, tag=5):
    """`m.CallReleased`."""

    call: int
    outcome: Outcome
    answered: bool
    generated: int
    finished: bool


class WireFailed(Struct, array_like=True, tag=6):
    """`m.Failed`."""

    request: int
    worker: str
    kind: FailureKind
    begun: float
    proven: bool
    suspects: tuple[str, ...]
    digest: bytes


class WireTokens(Struct, array_like=True, tag=7):
    """`m.TokensCame`."""

    tokens: list[tuple[int, int]]


class WireRunning(Struct, array_like=True, tag=8):
    """What runs at this relay: the answer to `WireLook`."""

    look: int
    requests: list[SeenRequest]


class WireMoveAsked(Struct, array_like=True, tag=9):
    """`m.MoveAsked`."""

    ask: int
    request: SeenRequest
    targets: tuple[Key, ...] | None


class WireMoveEnded(Struct, array_like=True, tag=10):
    """`m.MoveEnded`."""

    request: int
    how: MoveHow
    rank: Key | None
    stall_s: float
    tokens: int
    generated: int
    again: int
    reason: str


class WireEnded(Struct, array_like=True, tag=11):
    """`m.RequestEnded`."""

    request: int
    served: bool


class WireBeside(Struct, array_like=True, tag=12):
    """The request also runs on another worker, which calls it so: it moves there."""

    request: int
    rid: str
    worker: int


class WireWorkerLost(Struct, array_like=True, tag=13):
    """A connection to the worker broke that brought an answer."""

    worker: int


class WireAnswer(Struct, array_like=True, tag=14):
    """To `WireAsk`. `failed`: where it went wrong."""

    ask: int
    answer: Any
    failed: str = ""


class WireRecord(Struct, array_like=True, tag=15):
    """A request has come that is to be recorded."""

    entry: int
    arrived: float
    tokens: int
    blocks: tuple[int, ...]
    prompt_bytes: int
    request_class: RequestClass
    request_id: str


class WireRecorded(Struct, array_like=True, tag=16):
    """It is over."""

    entry: int
    output_tokens: int
    prompt_tokens: int


class WireCall(Struct, array_like=True):
    """A call that runs, of a request that is told to a new decider process."""

    call: int
    rank: Place
    answers: bool
    """Its answer is the client's."""
    proven: bool


class WireRejoin(Struct, array_like=True, tag=17):
    """A request that was there before this decider process was. `arrive`: as it came, or as its
    present attempt began; `begins`: it waits for its first worker."""

    arrive: WireArrive
    generated: int
    attempts: int
    begins: bool
    calls: list[WireCall]
    beside: list[tuple[str, int]]
    move: tuple[int, str, int] | None
    """`RejoinedMove`."""


# From the decider process.


class WirePrefill(Struct, array_like=True, tag=20):
    """`m.PrefillOrder`. `attempt`: of the request, from 0; `suspicion`: `Suspicion`."""

    request: int
    attempt: int
    rank: Place
    call: int
    whole: bool
    late: bool
    suspicion: tuple[bool, bool]


class WireDecode(Struct, array_like=True, tag=21):
    """`m.DecodeOrder`, with what is known of the prefill (`PrefillFacts`). `counts`, `followed`:
    see `Reservation`."""

    request: int
    attempt: int
    rank: Place
    call: int
    counts: bool
    followed: bool
    suspicion: tuple[bool, bool]
    counted: bool
    prompt_tokens: int
    cached_tokens: int
    told_at: float
    done_at: float


class WireAgain(Struct, array_like=True, tag=22):
    """`m.Again`."""

    request: int


class WireRefuse(Struct, array_like=True, tag=23):
    """`m.Refuse`."""

    request: int
    why: str
    role: str
    retry_after: int
    strikes: int
    text: str


class WireMove(Struct, array_like=True, tag=24):
    """`m.MoveOrder`."""

    request: int
    rank: Place
    call: int
    counts: bool
    why: str
    ask: int
    way: int
    room: float


class WireMoveKept(Struct, array_like=True, tag=25):
    """`m.MoveKept`."""

    request: int
    ask: int
    why: str
    reason: str
    ended: bool


class WireLook(Struct, array_like=True, tag=26):
    """`m.Look`."""

    look: int


class WireHealth(Struct, array_like=True, tag=27):
    """A worker's health, and which of its ranks are `open`."""

    worker: int
    healthy: bool
    open: list[bool]


class WireHello(Struct, array_like=True, tag=28):
    """A worker has said what it is."""

    worker: int
    hello: Hello


class WireGivenUp(Struct, array_like=True, tag=29):
    """All that runs on the worker is given up."""

    worker: int
    why: str
    kind: FailureKind


class WireBeat(Struct, array_like=True, tag=30):
    """The decider process goes on. Of each rank that said something since the last one: whether it
    has no request at all (None: it said nothing of that), and whether it made a step."""

    ranks: list[tuple[int, int, bool | None, bool]]


class WireMoving(Struct, array_like=True, tag=31):
    """What a worker says of an order to send a request elsewhere."""

    worker: int
    event: Moving


class WireSwitches(Struct, array_like=True, tag=32):
    """`Switches`, `Draining`, and whether requests must come with a digest."""

    first_token: str
    moves: str
    early_choice: bool
    wanted: tuple[bool, bool, bool]
    draining: bool
    quarantines: bool


class WirePrefillOver(Struct, array_like=True, tag=34):
    """The prefill is done of a request whose decode worker was chosen before."""

    request: int
    attempt: int
    at: float


class WireAsk(Struct, array_like=True, tag=33):
    """A question of the control plane."""

    ask: int
    question: Ask


FromRelay = (
    WireJoined | WireArrive | WireNextAttempt | WirePrefilled | WireProven | WireReleased
    | WireFailed | WireTokens | WireRunning | WireMoveAsked | WireMoveEnded | WireEnded | WireBeside
    | WireWorkerLost | WireAnswer | WireRecord | WireRecorded | WireRejoin
)  # fmt: skip
FromDecider = (
    WirePrefill | WireDecode | WireAgain | WireRefuse | WireMove | WireMoveKept | WireLook
    | WireHealth | WireHello | WireGivenUp | WireBeat | WireMoving | WireSwitches | WireAsk
    | WirePrefillOver
)  # fmt: skip


class RelayFrame(Struct, array_like=True):
    """A relay's messages in their order. `serial`: of the frame on its link, from 1."""

    serial: int
    messages: list[FromRelay]


class DeciderFrame(Struct, array_like=True):
    """The same of the decider process."""

    serial: int
    messages: list[FromDecider]
