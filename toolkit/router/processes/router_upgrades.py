"""The decider process's part of an upgrade: it passes the order on to the supervisor."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit.router.errors import ApiError
from toolkit.router.processes.shared import CONNECTIONS, PLACES, RETIRES
from toolkit.router.processes.upgrade_file import UpgradeFile, UpgradeProgress

if TYPE_CHECKING:
    from pathlib import Path

    from toolkit.router.processes.shared import SharedRows


class RouterUpgrades:
    """See `toolkit.router.upgrade_orders`."""

    def __init__(self, folder: Path, rows: SharedRows) -> None:
        self._file = UpgradeFile(folder)
        self._rows = rows

    def order(self, drain_s: float | None) -> dict[str, Any]:
        """Have the supervisor begin."""
        before = self._file.read()
        if not before.over:
            raise ApiError(409, f"upgrade {before.number} is under way: {before.phase}")
        self._file.write(UpgradeProgress(before.number + 1, "ordered", drain_s))
        os.kill(os.getppid(), signal.SIGUSR2)
        return self.progress()

    def progress(self) -> dict[str, Any]:
        """With what the former relays have left: `requests`, and `connections`."""
        rows, former = self._rows, self._rows.serving(RETIRES)
        left = {
            name: sum(rows.get(row, what) for row in former)
            for name, what in (("requests", PLACES), ("connections", CONNECTIONS))
        }
        told: dict[str, Any] = msgspec.to_builtins(self._file.read())
        return told | left
