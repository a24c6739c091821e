"""What operators have switched, and who was there: a file for the decider process that follows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from toolkit.decide.drain_orders import DrainOrder
from toolkit.router.quiet import where

if TYPE_CHECKING:
    from toolkit.router.control_plane import ControlPlane

log = logging.getLogger("toolkit.router")

NAME = "switched.json"


class Switched(msgspec.Struct, frozen=True):
    """By `POST /admin/policy` and `POST /admin/drain`. `drains`: of workers; `up`: the workers that
    were there."""

    policies: dict[str, str]
    dispatch: str
    first_token: str
    early_choice: bool
    moves: str
    draining: bool
    drains: list[DrainOrder]
    up: list[str]
    written: tuple[str, ...]
    """What the configuration said of the switches. Where it says something else to the next process
    (the router was upgraded), that holds."""


class SwitchedFile:
    """The file, in the folder that a router's processes share."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._last: Switched | None = None

    def save(self, control: ControlPlane) -> None:
        """If anything has changed. Where it cannot be written the next process has what is in the
        configuration."""
        switches, policies = control.switches, control.policies
        workers = control.known_workers.workers
        now = Switched(
            policies.names, policies.dispatch, switches.first_token, switches.early_choice,
            switches.moves, control.draining.on, control.drains.orders.all,
            [worker.name for worker in workers if worker.healthy], _written(control),
        )  # fmt: skip
        if now == self._last:
            return
        self._last = now
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(now))
            new.replace(self._path)
        except OSError as error:
            log.error("what was switched is not kept: %s", error.strerror)

    def restore(self, control: ControlPlane) -> list[str]:
        """As it was when the process before this one ended; nothing where there was none. The
        workers that were there then."""
        try:
            was = msgspec.json.decode(self._path.read_bytes(), type=Switched)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            log.error("what was switched is not known: %s", where(error))
            return []
        if was.written == _written(control):
            self._switch(control, was)
        control.draining.on = was.draining
        for order in was.drains:
            control.drains.restore(order)
        self._last = was
        return was.up

    @staticmethod
    def _switch(control: ControlPlane, was: Switched) -> None:
        policies, switches = control.policies, control.switches
        for side, name in was.policies.items():
            if policies.names[side] != name:
                policies.use(side, name)
        if policies.dispatch != was.dispatch:
            policies.use_dispatch(cast(Any, was.dispatch))
        switches.first_token = cast(Any, was.first_token)
        switches.early_choice, switches.moves = was.early_choice, cast(Any, was.moves)


def _written(control: ControlPlane) -> tuple[str, ...]:
    config = control.config
    return (
        config.prefill_policy, config.decode_policy, config.dispatch, config.first_token,
        config.moves,
    )  # fmt: skip
