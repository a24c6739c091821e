"""One request's side of the channel to the decider."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from toolkit.decide import messages as m
from toolkit.router.errors import ApiError, Retry

if TYPE_CHECKING:
    from toolkit.router.decider_channel import DeciderChannel, TakesCalls


class RequestChannel:
    """Gives orders to the attempt that runs, and wakes whoever waits for one (`turn`)."""

    def __init__(self, channel: DeciderChannel) -> None:
        self.channel = channel
        self.number = channel.join(self)
        self.attempt: TakesCalls | None = None
        self.failure: Retry | None = None
        """Of the last attempt."""
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the request's own task is to go on."""

    def send(self, message: m.Message) -> asyncio.Future[None]:
        """Tell the decider; what its order lets the request's task go on with."""
        self.turn = asyncio.get_running_loop().create_future()
        self.channel.send(message)
        return self.turn

    def take(self, order: m.RequestOrder) -> None:
        """An order for this request."""
        if isinstance(order, m.Refuse):
            self.fail(_refusal(order, self.failure))
        elif isinstance(order, m.Again):
            self.go_on()
        elif isinstance(order, m.Restored):
            raise AssertionError("whoever rejoins takes that")
        elif self.attempt is None or self.turn.done():
            self.channel.give_back(order.reservation)  # it is over, or about to be
        elif isinstance(order, m.PrefillOrder):
            self.attempt.prefill(order)
        else:
            self.attempt.decode(order)

    def go_on(self) -> None:
        """The request's task goes on."""
        if not self.turn.done():
            self.turn.set_result(None)

    def fail(self, error: Exception) -> None:
        """The request's task goes on with this error."""
        if not self.turn.done():
            self.turn.set_exception(error)

    def close(self, served: bool) -> None:
        """The request is over."""
        self.channel.send(m.RequestEnded(self.number, served))
        self.channel.leave(self.number)
        self.turn.cancel()


_POISONOUS = (
    "This request is not run again: {}. Other requests were served meanwhile; if it is ordinary, "
    "the workers' logs tell more."
)


def _poisonous(what: str) -> ApiError:
    return ApiError(422, _POISONOUS.format(what), "RequestFailsWorkers", final=True)


def _refusal(order: m.Refuse, failure: Retry | None) -> ApiError:
    """What the client gets."""
    match order.why:
        case "quarantined":
            return _poisonous("workers that ran this very request died, or failed, a while ago")
        case "poisonous" if failure is not None and failure.kind == "answer":
            failure.answer.final = True  # the worker says more than we can
            return failure.answer
        case "poisonous":
            what = f"{order.strikes} workers that ran it died, or failed, one after the other"
            return _poisonous(what)
        case "budget":
            text = "A worker failed this request, and too many others wait to be run again."
            return ApiError(503, text, retry_after=5)
        case "nobody":
            text = f"No healthy {order.role} worker."
            return ApiError(503, text, retry_after=order.retry_after)
        case "policy":
            return ApiError(500, order.text)
        case "failure":
            assert failure is not None
            return failure.answer
