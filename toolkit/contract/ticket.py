"""What the toolkit itself puts into a request for a worker, signed so that no client can.

A worker does more for the router than for a client: it goes on from output tokens that another
worker made (`patches.pd.resume`), and it hands out the experts of a prompt
(`patches.experts.capture`). The router asks for these in the request itself, under one key of
`custom_params`, since that is the only field of SGLang's that reaches the schedulers of every
endpoint unchanged. Clients can write into `custom_params` too; so what stands there is signed with
the key of the run's workers, which no client has, over the request's id and the content. A ticket
of one request is worth nothing in another: every attempt has a new random id.

A ticket is a flat mapping of text: SGLang's declared type for `custom_params`
(`CustomParamValue`) allows no list within a mapping.
"""

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.contract.request_class import RequestClass

TICKET_KEY = "toolkit"
"""The key of `custom_params` under which a ticket stands."""

MAX_RESUMED_IDS = 1 << 20
"""Output tokens that one ticket may bring along: no model's context is longer."""

_DOMAIN = "toolkit ticket 3"
_FIELDS = frozenset({"resume", "late", "capture", "class", "signature"})
_ID_DIGITS = 10
MAX_LATE = 8192
"""Tokens to resume that may come after the ticket: a request that moves is decoded on while its KV
is sent. For each of them the target reserves a place until the KV is there."""
MAX_NAME = 256
"""Characters of the name under which captured experts go out."""


class TicketError(ValueError):
    """A ticket that the toolkit's router did not write for this request."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a request may ask of a worker's patches; empty for an ordinary one."""

    resume: tuple[int, ...] = ()
    """Output token ids that the client has already; the generation goes on after them."""
    late: int = 0
    """So many of the last of them are placeholders, of which some may stay empty: how many tokens
    there are comes with the KV, from the decode worker that sends it (`patches.move`)."""
    capture: str = ""
    """The name under which the experts of every token go out on the worker's event stream: the id
    that the client gave the request. Empty: they do not."""
    request_class: RequestClass = RequestClass.STANDARD
    """The request's class."""


def sign(
    key: str,
    rid: str,
    *,
    resume: Sequence[int] = (),
    late: int = 0,
    capture: str = "",
    request_class: RequestClass = RequestClass.STANDARD,
) -> dict[str, Any]:
    """The value of `custom_params["toolkit"]` for the request that is posted with this `rid`.

    Raises:
        TicketError: no key, or ids that no worker would accept.
    """
    if not key:
        raise TicketError("a ticket cannot be signed without the workers' key")
    for token in resume:
        if type(token) is not int or not 0 <= token < 2**31:
            raise TicketError(f"{token!r} is no token id")
    if len(resume) > MAX_RESUMED_IDS:
        raise TicketError(f"{len(resume)} tokens to resume, at most {MAX_RESUMED_IDS}")
    _check_late(late, len(resume))
    ids = " ".join(map(str, resume))
    kind = str(request_class)
    some = str(late)
    signature = _signature(key, rid, ids, some, capture, kind)
    return {
        "resume": ids,
        "late": some,
        "capture": capture,
        "class": kind,
        "signature": signature,
    }


def read(custom_params: Any, rid: str, key: str | None) -> Ticket:
    """The ticket in a request's `custom_params`; an empty one where there is none.

    `rid` is the id under which the worker has the request, `key` the workers' key of this run;
    without one no ticket is accepted.

    Raises:
        TicketError: something stands there that was not signed with `key` for this `rid`.
    """
    if not isinstance(custom_params, Mapping) or TICKET_KEY not in custom_params:
        return Ticket()
    ticket = custom_params[TICKET_KEY]
    if not isinstance(ticket, Mapping) or ticket.keys() != _FIELDS:
        raise TicketError(f"custom_params.{TICKET_KEY} is the toolkit's own field")
    values = [ticket[name] for name in ("resume", "late", "capture", "class", "signature")]
    if any(type(value) is not str for value in values):
        raise TicketError(f"custom_params.{TICKET_KEY} has a value of a wrong type")
    ids, late, capture, kind, signature = values
    if not key:
        raise TicketError("this worker has no key, so it accepts no ticket")
    expected = _signature(key, rid, ids, late, capture, kind)
    # Bytes: on text `compare_digest` raises TypeError for anything but ASCII.
    if not hmac.compare_digest(expected.encode(), signature.encode(errors="replace")):
        raise TicketError(f"custom_params.{TICKET_KEY} is not signed for this request")
    if len(capture) > MAX_NAME:
        raise TicketError(f"a name of {len(capture)} characters, at most {MAX_NAME}")
    if kind not in list(RequestClass):
        raise TicketError(f"{kind[:20]!r} is no class of requests")
    if not (late.isascii() and late.isdigit() and len(late) <= _ID_DIGITS):
        raise TicketError(f"{late[:20]!r} is no number of tokens")
    resume = _ids(ids)
    _check_late(int(late), len(resume))
    return Ticket(resume, int(late), capture, RequestClass(kind))


def _check_late(late: int, resumed: int) -> None:
    if not 0 <= late <= min(MAX_LATE, resumed):
        raise TicketError(
            f"{late} of {resumed} tokens to resume are to come with the KV, at most {MAX_LATE} can"
        )


def _signature(key: str, rid: str, ids: str, late: str, capture: str, kind: str) -> str:
    # JSON of a list: no two contents have the same text, whatever a client's id contains.
    content = json.dumps([_DOMAIN, rid, ids, late, capture, kind])
    return hmac.new(key.encode(), content.encode(), "sha256").hexdigest()


def _ids(text: str) -> tuple[int, ...]:
    """The ids in a ticket's text: decimal numbers with one space between.

    Raises:
        TicketError: anything else, or too many.
    """
    words = text.split(" ") if text else []
    if len(words) > MAX_RESUMED_IDS:
        raise TicketError(f"{len(words)} tokens to resume, at most {MAX_RESUMED_IDS}")
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= _ID_DIGITS):
            raise TicketError(f"{word[:20]!r} is no token id")
    ids = tuple(map(int, words))
    if any(token >= 2**31 for token in ids):
        raise TicketError("a token id is 2**31 or more")
    return ids
