"""A file to which the router appends lines while it serves."""

from __future__ import annotations

import logging
import math
import os

from toolkit.settings.router.config import ConfigError

log = logging.getLogger("toolkit.router")


class LineFile:
    """Nobody but its owner reads it. Serving goes on where it cannot be written any more, or has
    `most` bytes: then it ends with a whole line, nothing comes behind that, and the log says so.

    ConfigError names `key`, the key of the configuration that asks for it: it cannot be opened.
    """

    def __init__(self, path: str, key: str, most: float = math.inf) -> None:
        self._path = path
        self._most = most
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"{key}: cannot write {path}: {error.strerror}") from error

    def write(self, line: bytes) -> bool:
        """One line, at once. False: it is not there."""
        if self._file is None:
            return False
        try:
            if os.fstat(self._file).st_size + len(line) > self._most:
                raise OSError("it is full")
            done = os.write(self._file, line)
            if done < len(line):
                os.ftruncate(self._file, os.fstat(self._file).st_size - done)
                raise OSError(f"{done} of {len(line)} bytes")
        except OSError as error:
            log.error("nothing more is recorded in %s: %s", self._path, error)
            self.close()
            return False
        return True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
