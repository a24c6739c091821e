"""What the router tells decode workers of a request that moves directly: POST /toolkit/move.

The source gets `Send`, and `End` when nothing comes of it; the target gets `Ids`. Each is a JSON
object whose `do` says which it is. What becomes of a `Send` is told on the event stream
(`toolkit.contract.events.Moving`).
"""

from typing import Annotated

import msgspec

from toolkit.contract.ticket import MAX_LATE, MAX_RESUMED_IDS

Rid = Annotated[str, msgspec.Meta(min_length=1)]
Room = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_RESUMED_IDS)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Send(msgspec.Struct, frozen=True, tag="send", tag_field="do", forbid_unknown_fields=True):
    """To the source: send the KV of `rid` to whoever asks for bootstrap room `room`.

    The target has the ids of the first `known` output tokens, and places for `late` more.
    `replay_s`: what a client waits when such a request is computed again; 0 is unknown.
    """

    rid: Rid
    room: Room
    known: Count
    late: Annotated[int, msgspec.Meta(ge=1, le=MAX_LATE)]
    replay_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0


class End(msgspec.Struct, frozen=True, tag="end", tag_field="do", forbid_unknown_fields=True):
    """To the source: the move to this room is off. What the request has generated since it stopped
    goes to its client."""

    rid: Rid
    room: Room


class Ids(msgspec.Struct, frozen=True, tag="ids", tag_field="do", forbid_unknown_fields=True):
    """To the target: ids of output tokens from number `at` on, in place of placeholders. Only the
    last ones come with the KV."""

    rid: Rid
    at: Count
    ids: Annotated[list[TokenId], msgspec.Meta(min_length=1, max_length=MAX_LATE)]


MoveOrder = Send | End | Ids


def encode_order(order: MoveOrder) -> bytes:
    """The request's body."""
    return msgspec.json.encode(order)


def decode_order(body: bytes) -> MoveOrder:
    """The order in a request's body.

    Raises:
        ValueError: says what is wrong with it, and where.
    """
    try:
        result: MoveOrder = msgspec.json.decode(body, type=MoveOrder)
        return result
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no order to move a request: {error}") from None
