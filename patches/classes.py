"""The class of a scheduler's request, by its ticket."""

from patches.sglang_types import Req
from patches.tickets import ticket_of
from toolkit.contract.request_class import RequestClass

_CLASS = "_toolkit_class"


def class_of(req: Req) -> RequestClass:
    """Of SGLang's `Req`. What the worker sends itself (probes, warm-ups) is standard."""
    known = getattr(req, _CLASS, None)
    if known is None:
        known = ticket_of(req).request_class  # intake has refused a ticket that is none
        setattr(req, _CLASS, known)
    return known


def latency_sensitive(req: Req) -> bool:
    return class_of(req) is RequestClass.LATENCY_SENSITIVE


def best_effort(req: Req) -> bool:
    return class_of(req) is RequestClass.BEST_EFFORT
