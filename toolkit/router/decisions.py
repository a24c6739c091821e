"""The router's decisions on record, where its configuration or the environment asks for it."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from toolkit.contract.variables import ROUTER_RECORD_VARIABLE
from toolkit.policies.base import Policy
from toolkit.settings.router.config import ConfigError, RouterConfig

log = logging.getLogger("toolkit.router")

MOST_BYTES = 2**30
"""Of each side's file: some million decisions among 16 ranks."""


class DecisionFile:
    """What decisions are written to. Serving goes on where it is full or cannot be written: then it
    ends with a whole line, and the log says so.

    ConfigError: it cannot be opened.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES) -> None:
        try:
            self._file = path.open("ab", buffering=0)
            self._left = most - path.stat().st_size
        except OSError as error:
            raise ConfigError(f"record_decisions: cannot write {path}: {error.strerror}") from error
        self._path = path
        self._ended = False

    def write(self, line: str) -> None:
        """One line, at once."""
        if self._ended:
            return
        data = line.encode()
        if len(data) > self._left:
            self._end("it is full")
            return
        at = self._file.tell()
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(f"{written} of {len(data)} bytes could be written")
        except OSError as error:
            with suppress(OSError):  # no part of a line is left
                self._file.truncate(at)
            self._end(str(error))
            return
        self._left -= len(data)

    def close(self) -> None:
        self._ended = True
        self._file.close()

    def _end(self, why: str) -> None:
        self._ended = True
        log.warning("decisions are no longer recorded in %s: %s", self._path, why)


class DecisionRecord:
    """The files of both sides, where asked for. ConfigError: they cannot be written."""

    def __init__(self, config: RouterConfig) -> None:
        self._seed, self._tau = config.seed, config.tau
        name = config.record_decisions or os.environ.get(ROUTER_RECORD_VARIABLE)
        sides = ("prefill", "decode") if name else ()
        self._files = {side: DecisionFile(Path(f"{name}.{side}.jsonl")) for side in sides}

    def of(self, policy: Policy, side: str) -> Policy:
        """The policy, recorded if that was asked for (`toolkit.decide.record`)."""
        if not self._files:
            return policy
        from toolkit.decide.record import recorded

        return recorded(policy, self._files[side], self._seed, self._tau)

    def close(self) -> None:
        for each in self._files.values():
            each.close()
