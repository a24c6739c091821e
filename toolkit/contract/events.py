"""What a worker says on its event stream: one JSON object a line, `hello` first.

`encode` writes a line, `decode` reads one. A number that is missing is 0 where the field has that
default: older workers do not say all. Fields that a reader does not know are passed over. What is
out of bounds (`toolkit.contract.numbers`) is no event.
"""

from typing import Any, Literal

import msgspec

from toolkit.contract import VERSION
from toolkit.contract.notices import Notice
from toolkit.contract.numbers import (
    Amount,
    Count,
    Layers,
    Name,
    Names,
    Room,
    Seconds,
    Serial,
    Small,
    Sum,
    Text,
    Tokens,
)


class Experts(msgspec.Struct, frozen=True):
    """The model's experts by its configuration, and whether this worker `captured` what each token
    was routed to. `count` a layer, 0 for a dense model; `layers` counts all layers."""

    count: Small = 0
    top_k: Small = 0
    layers: Small = 0
    captured: bool = False


class Records(msgspec.Struct, frozen=True):
    """What a worker's signatures are made of: these layers, with so many experts each."""

    layers: Layers
    experts: Small


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="type"):
    """Who the worker is. It may have changed with a restart."""

    contract: int = 0
    """`toolkit.contract.VERSION` of the worker; 0 from before there was one."""
    run: Name = ""
    """The run whose launcher started it."""
    role: Name = ""
    """SGLang's disaggregation mode: `prefill`, `decode` or `null`."""
    sglang: Name = ""
    device: Name = ""
    machine: Name = ""
    """The accelerator's name, or the processor's."""
    architecture: Name = ""
    dtype: Name = ""
    tp_size: Small = 1
    transfer: Name = ""
    """SGLang's KV transfer backend."""
    dp_size: Small = 1
    dp_attention: bool | None = None
    """Whether its DP ranks share their experts; None: it does not say."""
    model: Name = ""
    model_path: Text = ""
    fingerprint: Name = ""
    """`toolkit.fingerprint` of the weights; empty: it does not say."""
    experts: Experts = Experts()
    signature: Records | None = None
    """None where it makes none."""
    optimistic_prefill: bool = False
    """Whether it runs prompts before their decode worker is known."""
    vocab_size: Tokens = 0
    context_length: Tokens = 0
    max_total_tokens: Count = 0
    max_running_requests: Count = 0
    """Requests that one rank runs at a time at most. A worker that serves says it: 0 is no "without
    limit", and who says 0 is not taken in."""
    reserved_tokens: Count = 0
    """KV tokens that a rank keeps free for each of them."""
    page_size: Count = 1
    patches: Names = ()
    stays: Text = ""
    """Why what runs here cannot go on on another worker; empty where it can."""
    boot: Name = ""
    """Of this process: another one at the same address says another. Empty: it does not say."""
    kv_dtype: Name = ""
    """Of its KV cache, as SGLang has it; empty: it does not say."""


class Signature(msgspec.Struct, frozen=True, omit_defaults=True):
    """The experts of a prompt (`toolkit.signatures.wire` packs and reads it).

    `counts`: [S * E] unsigned integers of `width` bytes each, the least byte first, layers
    ascending, in base64 on the wire; times `scale` they are tokens of the prompt whose top-k had
    the expert. Workers send exact counts, with scale 1; those from before there was a `width`
    scaled what did not fit into one byte. A router from then finds too many values where they are
    wider, and goes by load. `tokens` is the prompt's length. `complete` is False when some token's
    experts are not known (KV loaded back from host memory, a layer that was not captured).
    """

    counts: bytes
    scale: float
    tokens: int
    complete: bool
    width: Literal[1, 2, 4] = 1


class PrefillDone(msgspec.Struct, frozen=True, tag="prefill_done", tag_field="type"):
    """The forward of a request's last prompt chunk has finished; or, with tokens `left`, one of the
    chunks before: its decode worker had better be chosen now, and the same comes again without."""

    rid: Name
    dp_rank: Small = 0
    prompt_tokens: Tokens = 0
    cached_tokens: Tokens = 0
    """Of the prompt, from the prefix cache."""
    signature: Any = None
    """A `Signature`; of no type here, since a bad one must not lose the rest of the event."""
    room: Room | None = None
    """The bootstrap room, by which a decode worker knows the same request."""
    left: Tokens = 0
    """Of the prompt, that are not computed yet. The signature is that of the rest."""


class KvTransfer(msgspec.Struct, frozen=True, tag="kv_transfer", tag_field="type"):
    """A request's KV is on its decode worker: `tokens` of prompt, `bytes` moved by this rank in so
    many `seconds`; where some went `ahead`, while the prompt ran, those of its last chunk."""

    seconds: Seconds
    bytes: Sum
    tokens: Tokens = 0
    rid: Name = ""
    dp_rank: Small = 0
    ahead: bool = False


MoveState = Literal["cut", "sent", "unable", "refused", "slow", "replay", "failed", "gone"]


class Moving(msgspec.Struct, frozen=True, tag="moving", tag_field="type", omit_defaults=True):
    """What has become of the order to send a running request's KV to another decode worker.

    `cut`: it has stopped here at `tokens` of KV, the rest is on its way, and what comes behind is
    the target's to say. `sent`: it is there. All others end the move, and the request goes on where
    it is: `unable`, as this rank can send nothing, for the `reason`; `refused`, as it cannot now;
    `slow`: it does not come to a stop that is short enough; `replay`: nor that, and to compute it
    again elsewhere takes less; `failed` on the way, or nobody said what comes of it; `gone`: the
    request ended or was put aside meanwhile. `cut` is followed by `sent` or `failed`; `sent` by
    `failed` if the target says nothing; all others by nothing.
    """

    rid: Name
    state: MoveState
    room: Room = 0
    reason: Text = ""
    tokens: Tokens = 0
    """Whose KV is sent."""
    bytes: Sum = 0
    """By this rank."""
    seconds: Seconds = 0.0
    """Since the order."""
    last_s: Seconds = 0.0
    """Between `cut` and `sent`, as this worker saw it."""
    dp_rank: Small = 0
    outputs: Tokens = 0
    """Of a cut: output tokens of which the target gets the KV. The client gets one more from
    here."""
    rounds: Tokens = 0
    """In which KV was sent before the stop."""
    rate: Amount = 0.0
    """Bytes a second in these; 0: none was over."""
    step_s: Seconds = 0.0
    """Of this rank's decode steps; 0: not measured."""
    step_tokens: Amount = 1.0
    """That one of them gives a request in the mean."""
    token_bytes: Amount = 0.0
    """Of this rank's KV."""
    last_bytes: Sum = 0
    """What was left at the stop, or is when there is none."""


class LoadReading(msgspec.Struct, frozen=True, tag="load", tag_field="type"):
    """One DP rank's load after a step: requests, and KV tokens.

    `total_tokens` is what the requests will use; `waiting_tokens` are uncached prompt tokens that
    wait for their prefill. `capacity_tokens` is the pool's size; None: `total_tokens` is.
    """

    running: Count = 0
    waiting: Count = 0
    used_tokens: Count = 0
    total_tokens: Count = 0
    waiting_tokens: Count = 0
    capacity_tokens: Count | None = None
    dp_rank: Small = 0


class Steps(msgspec.Struct, frozen=True, tag="steps", tag_field="type"):
    """Sums over a rank's decode steps since the event before.

    `requests` of batch sizes, `kv_tokens` of KV tokens attended to, `seconds` of wall times,
    `distinct` of the mean over MoE layers of distinct experts, of ranks that share their experts
    those of all together; 0 where experts are not captured. `new_tokens` that requests got: one of
    each step, or more where drafts are accepted; 0 where nobody says.
    """

    steps: Tokens
    requests: Sum
    kv_tokens: Sum
    seconds: Seconds
    distinct: Amount
    dp_rank: Small = 0
    new_tokens: Sum = 0


class GaveWay(msgspec.Struct, frozen=True, tag="gave_way", tag_field="type", omit_defaults=True):
    """Best-effort work stood still for latency-sensitive requests. `prompt`: a batch of `requests`
    prompts stopped between two layers and went on after `seconds`. `answer`: so many answers were
    put aside (then without seconds), or one went on that had been for so long (then none)."""

    kind: Literal["prompt", "answer"]
    requests: Small = 0
    seconds: Seconds = 0.0
    dp_rank: Small = 0


class Placed(msgspec.Struct, frozen=True, tag="placed", tag_field="type"):
    """The worker's experts lie elsewhere: `GET /toolkit/placement` says where. `serial`: of the
    orders that it has carried out."""

    serial: Serial


class Down(msgspec.Struct, frozen=True, tag="down", tag_field="type"):
    """One of the worker's processes died; nothing more will come."""

    reason: Text = ""


class Ping(msgspec.Struct, frozen=True, tag="ping", tag_field="type", omit_defaults=True):
    """Nothing has happened for a second, and the worker lives."""

    held_up: Seconds = 0.0
    """Seconds for which its HTTP loop has not come round: requests get no answer from it for so
    long, though its ranks may compute. 0: it comes round. Said twice a second while it lasts, and
    once when it is over."""


class Routers(msgspec.Struct, frozen=True, tag="routers", tag_field="type"):
    """Names of all routers that listen now, told to each of them when one comes or goes."""

    names: Names


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat", tag_field="type", omit_defaults=True):
    """What a rank's scheduler last wrote of itself (`toolkit.contract.heartbeat`), twice a second,
    whether or not it has changed: a count that stands still is a rank that does."""

    beats: int
    works: bool = False
    doing: str = ""
    expected_s: float = 0.0
    dp_rank: int = 0


Event = (
    Hello
    | PrefillDone
    | KvTransfer
    | Moving
    | LoadReading
    | Steps
    | GaveWay
    | Placed
    | Down
    | Ping
    | Routers
    | Notice
    | Heartbeat
)

RUN_MAX = 1024
SHOWN_MAX = 40
"""Characters of what a stranger says that a message repeats."""

_decoder = msgspec.json.Decoder(Event)
_encoder = msgspec.json.Encoder()


class Greeting(msgspec.Struct, frozen=True):
    """What every version's `hello` says, whatever else is in it."""

    type: str = ""
    contract: Any = 0
    run: Any = ""


class OtherContract(ValueError):
    """A worker that speaks another version of this contract; the message says which and what to
    do."""

    def __init__(self, theirs: object) -> None:
        super().__init__(
            f"it speaks version {_shown(theirs)} of the contract between workers and the toolkit, "
            f"this is version {VERSION}: start both with the same release of the toolkit"
        )


class NotAnEvent(ValueError):
    """A line that is no event of this contract. `kind` and `rank` as far as it says them; a rank
    that is no number is -1."""

    def __init__(self, message: str, kind: str, rank: int) -> None:
        super().__init__(message)
        self.kind, self.rank = kind, rank


class _Head(msgspec.Struct, frozen=True):
    type: Any = ""
    dp_rank: Any = 0


def encode(event: Event) -> bytes:
    """One line of the stream."""
    return _encoder.encode(event) + b"\n"


def decode(line: bytes) -> Event:
    """The event in a line.

    Raises:
        OtherContract: a `hello` of another version.
        NotAnEvent: no JSON, no event that this version knows, or a field of a wrong type. The
            message holds no value of the line.
    """
    try:
        event: Event = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _check_version(line)
        head = _head(line)
        # A validation error names types and a field's path; only that of an unknown tag its value.
        wrong = str(error) if isinstance(error, msgspec.ValidationError) else "not JSON"
        if wrong.startswith("Invalid value"):
            wrong = "of an unknown type"
        kind = head.type if isinstance(head.type, str) else ""
        rank = head.dp_rank if type(head.dp_rank) is int else -1
        raise NotAnEvent(wrong, kind, rank) from None
    if isinstance(event, Hello) and event.contract != VERSION:
        raise OtherContract(event.contract)
    return event


def greeting(line: bytes) -> Greeting | None:
    """Who speaks, of whatever version; None for a line that is no `hello`."""
    try:
        found = msgspec.json.decode(line, type=Greeting)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if found.type != "hello":
        return None
    run = found.run if isinstance(found.run, str) and len(found.run) <= RUN_MAX else ""
    return msgspec.structs.replace(found, run=run)


def _shown(value: object) -> str:
    """A value of any kind in a message, which it must not fill."""
    try:
        text = str(value)
    except (ValueError, RecursionError):  # thousands of digits, or of levels
        return type(value).__name__
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def _check_version(line: bytes) -> None:
    hello = greeting(line)
    if hello is not None and hello.contract != VERSION:
        raise OtherContract(hello.contract)


def _head(line: bytes) -> _Head:
    try:
        return msgspec.json.decode(line, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Head()
