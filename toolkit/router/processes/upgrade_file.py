"""How far an upgrade of the router is, in a file of the folder that its processes share: the
decider process writes what an operator orders, the supervisor what becomes of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import msgspec

from toolkit.router.quiet import where

log = logging.getLogger("toolkit.router")

NAME = "upgrade.json"

Phase = Literal[
    "none", "ordered", "rehearsing", "starting", "replacing", "ending", "done", "failed"
]
OVER: tuple[Phase, ...] = ("none", "done", "failed")


class UpgradeProgress(msgspec.Struct, frozen=True):
    """`number`: of the upgrade, from 1; `drain_s`: how long the former relays may take to end
    (None: as long as their clients); `why`: it failed; `cut`: requests that this limit ended."""

    number: int = 0
    phase: Phase = "none"
    drain_s: float | None = None
    why: str = ""
    cut: int = 0

    @property
    def over(self) -> bool:
        """Another one may begin."""
        return self.phase in OVER


class UpgradeFile:
    """The file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def read(self) -> UpgradeProgress:
        """As it was written last."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=UpgradeProgress)
        except FileNotFoundError:
            return UpgradeProgress()
        except (OSError, msgspec.DecodeError) as error:
            log.error("how far the upgrade is cannot be read: %s", where(error))
            return UpgradeProgress()

    def write(self, progress: UpgradeProgress) -> None:
        """At once."""
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(progress))
            new.replace(self._path)
        except OSError as error:
            log.error("how far the upgrade is cannot be written: %s", error.strerror)
