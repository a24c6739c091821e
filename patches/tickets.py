"""What the toolkit itself asks in a request, as a worker's processes read it
(`toolkit.contract.ticket`)."""

import os
import secrets

from patches.sglang_types import Named
from toolkit.contract.ticket import TICKET_KEY, Ticket, TicketError, read, sign
from toolkit.contract.variables import OWN_KEY_VARIABLE, WORKER_KEY_VARIABLE


def ticket_key() -> str:
    """What tickets are signed with: the run's key. A worker that was given none makes one up, so
    that it can sign what it asks of its own schedulers, and accepts nobody else's tickets."""
    key = os.environ.get(WORKER_KEY_VARIABLE)
    # The main process asks first, before it starts the others, which inherit it.
    return key or os.environ.setdefault(OWN_KEY_VARIABLE, secrets.token_hex(32))


def ticket_of(request: Named) -> Ticket:
    """The ticket of anything with `rid` and `sampling_params`; empty for an ordinary request.

    Raises:
        TicketError: what stands there is not signed for this request.
    """
    custom = getattr(request.sampling_params, "custom_params", None)
    if not isinstance(custom, dict) or TICKET_KEY not in custom:
        return Ticket()
    return read(custom, request.rid, ticket_key())


def add_capture(request: Named) -> None:
    """Ask this worker's schedulers for the experts of a tokenized request; what its ticket says
    already stays. One with a ticket that is none is left for the schedulers to refuse."""
    try:
        ticket = ticket_of(request)
    except TicketError:
        return
    name = ticket.capture or request.rid
    kind = ticket.request_class
    signed = sign(
        ticket_key(),
        request.rid,
        resume=ticket.resume,
        late=ticket.late,
        capture=name,
        request_class=kind,
    )
    params = request.sampling_params
    params.custom_params = {**(params.custom_params or {}), TICKET_KEY: signed}
